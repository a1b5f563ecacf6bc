// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

#[test]
fn lists_and_masks_are_read_as_the_kernel_writes_them() {
    for (list, mask, cpus) in [
        ("", "0", &[][..]),
        ("1", "2", &[1]),
        ("0-1", "3", &[0, 1]),
        ("0,2-3", "d", &[0, 2, 3]),
        ("31-32", "1,80000000", &[31, 32]),
        ("64", "1,00000000,00000000", &[64]),
    ] {
        let set: Cpus = cpus.iter().copied().collect();
        assert_eq!(Cpus::from_list(list).as_ref(), Ok(&set), "{list:?}");
        assert_eq!(Cpus::from_mask(mask).as_ref(), Ok(&set), "{mask:?}");
        assert_eq!(set.to_string(), list);
        assert_eq!(set.mask(), mask);
    }
    assert_eq!(Cpus::from_mask("00000000,0000000f\n").expect("padded").to_string(), "0-3");
    assert!(Cpus::from_list("(null)\n").expect("none").is_empty());
}

#[test]
fn nonsense_is_refused() {
    for list in ["a", "3-1", "1-", "-", "0-99999999999", "0x1", "1;2"] {
        assert!(Cpus::from_list(list).is_err(), "{list:?}");
    }
    for mask in ["", "g", "-1", "+1", "123456789", "1,,1"] {
        assert!(Cpus::from_mask(mask).is_err(), "{mask:?}");
    }
}

#[test]
fn the_interrupts_table() {
    let table = counts_table(
        "           CPU0       CPU2       \n 24:          1          7  IO-APIC   5-edge      ACPI:Ged\nNMI:          0          3   Non-maskable interrupts\nERR:          0\n garbage\n",
    );
    assert_eq!(table.len(), 3);
    assert_eq!((table[0].label.as_str(), table[0].on(2), table[0].on(1)), ("24", 7, 0));
    assert_eq!(table[0].name, "IO-APIC 5-edge ACPI:Ged");
    assert_eq!((table[1].on(2), table[1].name.as_str()), (3, "Non-maskable interrupts"));
    assert_eq!(table[2].counts, [(0, 0)]);
}

#[test]
fn words() {
    assert_eq!(chosen("always [madvise] never"), "madvise");
    assert_eq!(chosen("none"), "none");
    assert_eq!(chosen("none voluntary (full) lazy"), "full");
    let cmdline = "quiet nohz_full=1 isolcpus=2 isolcpus=1 -- nohz_full=9";
    assert_eq!(boot_parameter(cmdline, "isolcpus"), Some("1"));
    assert_eq!(boot_parameter(cmdline, "nohz_full"), Some("1"));
    assert_eq!(boot_parameter(cmdline, "quiet"), Some(""));
    assert_eq!(boot_parameter(cmdline, "rcu_nocbs"), None);
    assert_eq!(kernel_version("6.18.44-fc"), Some((6, 18)));
    assert_eq!(kernel_version("nonsense"), None);
    assert_eq!(steal_ticks("cpu 1 2 3 4 5 6 7 8 9\ncpu1 1 2 3 4 5 6 7 643 0 0\n", 1), Some(643));
    assert_eq!(steal_ticks("cpu1 1 2\n", 1), None);
    let limits = "Limit  Soft Limit\nMax locked memory         8388608     8388608    bytes\nMax realtime priority     unlimited  0";
    assert_eq!(soft_limit(limits, "Max locked memory"), Some(Some(8_388_608)));
    assert_eq!(soft_limit(limits, "Max realtime priority"), Some(None));
    assert_eq!(soft_limit(limits, "Max nothing"), None);
}

proptest! {
    #[test]
    fn nothing_panics(text in "\\PC*", bytes in prop::collection::vec(any::<u8>(), 0..300), cpu in any::<usize>()) {
        for text in [text.as_str(), &String::from_utf8_lossy(&bytes)] {
            let _ = Cpus::from_list(text);
            let _ = Cpus::from_mask(text);
            let _ = counts_table(text).iter().map(|line| line.on(cpu)).max();
            let _ = counts_table(&format!("CPU0 CPU1\n{text}"));
            let _ = (steal_ticks(text, 0), chosen(text), boot_parameter(text, "a"));
            let _ = (kernel_version(text), soft_limit(text, "a"));
        }
    }

    #[test]
    fn almost_tables_do_not_panic(text in "( *CPU[0-9]{1,3})*\n([ 0-9A-Z]{0,5}:?[ 0-9x-]{0,40}\n){0,9}") {
        let _ = counts_table(&text);
    }

    #[test]
    fn lists_and_masks_come_back(cpus in prop::collection::btree_set(0usize..300, 0..40)) {
        let set: Cpus = cpus.into_iter().collect();
        prop_assert_eq!(&Cpus::from_list(&set.to_string()).unwrap(), &set);
        prop_assert_eq!(&Cpus::from_mask(&set.mask()).unwrap(), &set);
    }
}
