// SPDX-License-Identifier: Apache-2.0
//! `dprintf` to a connection: the C library writes without the functions of this library, and so makes the text in memory, which is written
//! by them.
//!
//! Functions with any number of arguments are beyond Rust. Those of `x86_64` are a few instructions that make a list of them; on other
//! machines only those with a list are followed.

use libc::{c_char, c_int, c_void};

use crate::{conn::carried, data, real};

/// A `va_list`: passed as a pointer by the ABIs of Linux for 64 bits, where it is an array or a struct of more than 16 bytes.
type Arguments = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: Arguments) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int;
}

/// All of it, or an error.
fn writes(fd: c_int, makes: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = std::ptr::null_mut();
    let len = makes(&raw mut text);
    let Ok(all) = usize::try_from(len) else { return -1 };
    let mut written = 0;
    while written < all {
        // SAFETY: so many bytes are there.
        match usize::try_from(unsafe { data::write(fd, text.add(written).cast(), all - written) }) {
            Ok(more @ 1..) => written += more,
            _ => break,
        }
    }
    let why = real::errno();
    // SAFETY: it is of the C library's allocator, and used no more.
    unsafe { libc::free(text.cast()) };
    real::fail(why);
    if written == all { len } else { -1 }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, arguments: Arguments) -> c_int {
    if carried(fd).is_none() {
        // SAFETY: the caller's.
        return unsafe { real::vdprintf(fd, format, arguments) };
    }
    // SAFETY: the caller's.
    writes(fd, |text| unsafe { vasprintf(text, format, arguments) })
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int {
    if carried(fd).is_none() {
        // SAFETY: the caller's.
        return unsafe { real::__vdprintf_chk(fd, flag, format, arguments) };
    }
    // SAFETY: the caller's.
    writes(fd, |text| unsafe { __vasprintf_chk(text, flag, format, arguments) })
}

/// Those with any number of arguments: they save the registers that hold some of these, as the ABI has it for `va_start`, and hand on a list
/// of them (gp_offset, fp_offset, overflow_arg_area, reg_save_area).
#[cfg(all(target_arch = "x86_64", not(test)))]
mod any {
    use std::arch::naked_asm;

    use super::{__vdprintf_chk, c_char, c_int, vdprintf};

    macro_rules! lists {
        ($list:literal, $named:literal) => {
            concat!(
                // The stack is aligned to 16 bytes behind that: the list at 0, the registers from 32 on.
                ".cfi_startproc\nsub rsp, 216\n.cfi_adjust_cfa_offset 216\n",
                "mov [rsp + 48], rdx\nmov [rsp + 56], rcx\nmov [rsp + 64], r8\nmov [rsp + 72], r9\n",
                "test al, al\nje 2f\n",
                "movaps [rsp + 80], xmm0\nmovaps [rsp + 96], xmm1\nmovaps [rsp + 112], xmm2\nmovaps [rsp + 128], xmm3\n",
                "movaps [rsp + 144], xmm4\nmovaps [rsp + 160], xmm5\nmovaps [rsp + 176], xmm6\nmovaps [rsp + 192], xmm7\n",
                "2:\n",
                "mov dword ptr [rsp], ", $named, "\nmov dword ptr [rsp + 4], 48\n",
                "lea rax, [rsp + 224]\nmov [rsp + 8], rax\nlea rax, [rsp + 32]\nmov [rsp + 16], rax\n",
                "mov ", $list, ", rsp\ncall {}\nadd rsp, 216\n.cfi_adjust_cfa_offset -216\nret\n.cfi_endproc"
            )
        };
    }

    /// # Safety
    /// That of the function, which has any number of arguments.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn dprintf(fd: c_int, format: *const c_char) -> c_int {
        // Two are named: 16 bytes of the registers' area.
        naked_asm!(lists!("rdx", "16"), sym vdprintf)
    }

    /// # Safety
    /// That of the function, which has any number of arguments.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char) -> c_int {
        // Three are named.
        naked_asm!(lists!("rcx", "24"), sym __vdprintf_chk)
    }
}
