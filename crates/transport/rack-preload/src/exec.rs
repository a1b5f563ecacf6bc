// SPDX-License-Identifier: Apache-2.0
//! A program that is begun gets the descriptors that are not closed by that (`FD_CLOEXEC`), and knows nothing of their memory. Which of them it
//! uses nobody says; those whose numbers stand in its arguments or its environment go back to TCP.
//!
//! Of `execl` and the like, which have any number of arguments, those of `x86_64` are followed.

use std::{ffi::CStr, ptr};

use libc::{c_char, c_int, c_void};
use rustix::io::FdFlags;

use crate::{
    conn::{CONNS, borrowed, is_not_followed},
    process, real,
};

/// Words that are looked at of a list: what the kernel takes has fewer than these, as a rule.
const WORDS_MAX: usize = 1 << 16;

type Words = *const *const c_char;

/// A connection that the next program gets.
fn goes_on(fd: c_int) -> bool {
    CONNS.has(fd)
        && rustix::io::fcntl_getfd(borrowed(fd)).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
        && (process::is_own() || process::is_parents(fd))
}

/// Numbers that stand by themselves, as in `5`, `--fd=5`, `/dev/fd/5` and `3;5`, and not in `a5`, `05` or `5.1`.
fn numbers(word: &[u8]) -> impl Iterator<Item = c_int> + '_ {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.';
    word.split(move |byte| !is_part(byte)).filter_map(|part| match part {
        [b'0', _, ..] => None,
        part if part.iter().all(u8::is_ascii_digit) => str::from_utf8(part).ok()?.parse().ok(),
        _ => None,
    })
}

/// What of a variable may name descriptors: a value of nothing but numbers, or `NAME=fd:5`. Others are full of numbers (`LS_COLORS`).
fn value(variable: &[u8]) -> &[u8] {
    let value = variable.splitn(2, |byte| *byte == b'=').nth(1).unwrap_or_default();
    let rest = value.strip_prefix(b"fd:").unwrap_or(value);
    if rest.iter().any(u8::is_ascii_alphabetic) { &[] } else { rest }
}

/// # Safety
/// It is null, or a list of texts that ends with null.
unsafe fn each(words: Words, mut with: impl FnMut(&[u8])) {
    for at in 0..if words.is_null() { 0 } else { WORDS_MAX } {
        // SAFETY: the caller's.
        let word = unsafe { *words.add(at) };
        if word.is_null() {
            return;
        }
        // SAFETY: the caller's.
        with(unsafe { CStr::from_ptr(word) }.to_bytes());
    }
}

fn names(word: &[u8]) {
    numbers(word).filter(|fd| goes_on(*fd)).for_each(|fd| _ = is_not_followed(fd));
}

/// A program is begun with these.
///
/// # Safety
/// That of [`each`], for both.
pub(crate) unsafe fn begins(arguments: Words, environment: Words) {
    if CONNS.all().next().is_none() {
        return;
    }
    let before = real::errno();
    // SAFETY: the caller's.
    unsafe {
        each(arguments, names);
        each(environment, |variable| names(value(variable)));
    }
    real::fail(before);
}

unsafe extern "C" {
    static environ: Words;
}

macro_rules! begins {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty, $arguments:expr, $environment:expr;)*) => {
        $(
            /// # Safety
            /// That of the function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                // SAFETY: the caller's.
                unsafe {
                    begins($arguments, $environment);
                    real::$name($($arg),*)
                }
            }
        )*
    };
}

begins! {
    execve(path: *const c_char, arguments: Words, environment: Words) -> c_int, arguments, environment;
    execv(path: *const c_char, arguments: Words) -> c_int, arguments, environ;
    execvp(file: *const c_char, arguments: Words) -> c_int, arguments, environ;
    execvpe(file: *const c_char, arguments: Words, environment: Words) -> c_int, arguments, environment;
    fexecve(program: c_int, arguments: Words, environment: Words) -> c_int, arguments, environment;
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void, [command, ptr::null()].as_ptr(), environ;
    system(command: *const c_char) -> c_int, [command, ptr::null()].as_ptr(), environ;
    execveat(at: c_int, path: *const c_char, arguments: Words, environment: Words, flags: c_int) -> c_int, arguments, environment;
    posix_spawn(child: *mut c_int, path: *const c_char, actions: *const c_void, how: *const c_void, arguments: Words, environment: Words) -> c_int, arguments, environment;
    posix_spawnp(child: *mut c_int, file: *const c_char, actions: *const c_void, how: *const c_void, arguments: Words, environment: Words) -> c_int, arguments, environment;
}

/// Before the program begins: the child of a `vfork`, or a handler, finds them so.
pub(crate) fn resolve() {
    #[cfg(all(target_arch = "x86_64", not(test)))]
    any::resolve();
}

/// Those with any number of arguments: they save the registers that hold some of these, have them looked at, and go on to the next function
/// as if they had not been there.
#[cfg(all(target_arch = "x86_64", not(test)))]
mod any {
    use std::{arch::naked_asm, ptr};

    use libc::{c_char, c_int};

    use super::{Words, begins, environ};
    use crate::real::Next;

    /// Arguments in registers.
    const REGISTERS: usize = 6;
    static EXECL: Next = Next::new(c"execl");
    static EXECLP: Next = Next::new(c"execlp");
    static EXECLE: Next = Next::new(c"execle");

    pub(super) fn resolve() {
        [&EXECL, &EXECLP, &EXECLE].into_iter().for_each(|next| _ = next.get());
    }

    /// The next function, of that number. `registers`: the first arguments, and behind what was saved, and where it returns to, the
    /// others.
    ///
    /// # Safety
    /// A null ends the arguments, and of `execle` the environment follows.
    unsafe extern "C" fn looks(registers: Words, which: c_int) -> usize {
        // SAFETY: the caller's: nothing behind the null, and the environment, is looked at.
        let argument = |at: usize| unsafe { *registers.add(if at < REGISTERS { at } else { at + 2 }) };
        let mut count = 1;
        while count < super::WORDS_MAX && !argument(count).is_null() {
            // SAFETY: a list of one, and of its end.
            unsafe { begins([argument(count), ptr::null()].as_ptr(), ptr::null()) };
            count += 1;
        }
        // SAFETY: the C library's, which is read as its own functions of these names read it.
        let own = unsafe { environ };
        let (environment, next) = match which {
            0 => (own, &EXECL),
            1 => (own, &EXECLP),
            _ => (argument(count + 1).cast(), &EXECLE),
        };
        // SAFETY: the caller's.
        unsafe { begins(ptr::null(), environment) };
        next.get().addr()
    }

    macro_rules! goes_on {
        ($which:literal) => {
            concat!(
                // Six registers and a word, so that the stack is aligned to 16 bytes; behind them is where it returns to, and then the others.
                ".cfi_startproc\nsub rsp, 56\n.cfi_adjust_cfa_offset 56\n",
                "mov [rsp], rdi\nmov [rsp + 8], rsi\nmov [rsp + 16], rdx\nmov [rsp + 24], rcx\nmov [rsp + 32], r8\nmov [rsp + 40], r9\n",
                "mov rdi, rsp\nmov esi, ",
                $which,
                "\ncall {}\nmov r11, rax\n",
                "mov rdi, [rsp]\nmov rsi, [rsp + 8]\nmov rdx, [rsp + 16]\nmov rcx, [rsp + 24]\nmov r8, [rsp + 32]\nmov r9, [rsp + 40]\n",
                "add rsp, 56\n.cfi_adjust_cfa_offset -56\n",
                // No argument is in a vector register.
                "xor eax, eax\njmp r11\n.cfi_endproc"
            )
        };
    }

    /// # Safety
    /// That of the function, which has any number of arguments.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn execl(path: *const c_char, first: *const c_char) -> c_int {
        naked_asm!(goes_on!("0"), sym looks)
    }

    /// # Safety
    /// As above.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn execlp(file: *const c_char, first: *const c_char) -> c_int {
        naked_asm!(goes_on!("1"), sym looks)
    }

    /// # Safety
    /// As above.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn execle(path: *const c_char, first: *const c_char) -> c_int {
        naked_asm!(goes_on!("2"), sym looks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_words_and_variables_are_those_that_may_be_descriptors() {
        let of = |word: &str| numbers(word.as_bytes()).collect::<Vec<_>>();
        assert_eq!(of("5"), [5]);
        assert_eq!(of("printf abc >&5"), [5]);
        assert_eq!(of("--fd=5"), [5]);
        assert_eq!(of("/dev/fd/17"), [17]);
        assert_eq!(of("3;4;0"), [3, 4, 0]);
        assert_eq!(of("a5 5a 05 5.1 127.0.0.1 99999999999 -"), []);
        let of = |variable: &str| numbers(value(variable.as_bytes())).collect::<Vec<_>>();
        assert_eq!(of("NGINX=6;7;"), [6, 7]);
        assert_eq!(of("LISTENER=fd:5"), [5]);
        assert_eq!(of("LS_COLORS=di=01;34:ln=36"), []);
        assert_eq!((of("A5=x"), of("5"), of("")), (vec![], vec![], vec![]));
    }
}
