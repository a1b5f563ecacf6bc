// SPDX-License-Identifier: Apache-2.0

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use proptest::prelude::*;

use super::*;
use crate::pci::{PART_MIN, Side};

const LEN: usize = 4 * PART_MIN;
const PACKET: usize = 100;

/// The two ends of a file.
fn ends(file: &File) -> [Arc<PciWindow>; 2] {
    let open = |side| Arc::new(PciWindow::of_file(file.try_clone().unwrap(), side).unwrap());
    [open(Side::First), open(Side::Second)]
}

fn memory() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(LEN as u64).unwrap();
    file
}

/// A host, and each of its peers.
fn star(peers: usize) -> (Plane, Vec<Plane>) {
    let pairs: Vec<_> = (0..peers).map(|_| ends(&memory())).collect();
    let there = pairs.iter().map(|[_, there]| Plane::new([Arc::clone(there)], 5)).collect();
    (Plane::new(pairs.into_iter().map(|[here, _]| here), 5), there)
}

/// Each end looks until the ends have met.
fn meet(here: &mut Plane, there: &mut [Plane]) {
    for _ in 0..3 {
        while here.receive(&mut [0; PACKET]).is_some() {}
        for plane in &mut *there {
            while plane.receive(&mut [0; PACKET]).is_some() {}
        }
    }
}

fn all(plane: &mut Plane, most: usize) -> Vec<u8> {
    let mut got = [0; PACKET];
    (0..most).map_while(|_| plane.receive(&mut got).map(|_| got[0])).collect()
}

#[test]
fn packet_comes_to_each_host_and_each_host_has_its_turn() {
    let (mut here, mut there) = star(3);
    meet(&mut here, &mut there);
    here.send(&[9; PACKET]).unwrap();
    for (number, plane) in (1..).zip(&mut there) {
        assert_eq!(all(plane, 10), [9]);
        // The last one writes as much as there is room for.
        for _ in 0..if number == 3 { 10 } else { 1 } {
            plane.send(&[number; PACKET]).unwrap();
        }
    }
    let got = all(&mut here, 4);
    assert!(got.contains(&1) && got.contains(&2), "{got:?}");
    assert_eq!(all(&mut here, 20), [3; 8]);
}

/// As between two agents, of which one takes over from the other: its windows are open before that one has ended.
#[test]
fn nothing_is_written_before_it_is_used() {
    let file = memory();
    let [here, there] = ends(&file);
    let (mut first, mut other) = (Plane::new([Arc::clone(&here)], 1), Plane::new([there], 1));
    meet(&mut first, std::slice::from_mut(&mut other));
    let read = || {
        let mut bytes = vec![0; LEN];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let before = read();
    let mut second = Plane::new([here], 100);
    assert_eq!(read(), before);
    first.send(&[1; PACKET]).unwrap();
    assert_eq!(all(&mut other, 9), [1]);
    drop(first);
    // Looking is enough for the ends to meet: the first packet comes.
    meet(&mut second, std::slice::from_mut(&mut other));
    second.send(&[2; PACKET]).unwrap();
    assert_eq!(all(&mut other, 9), [2]);
}

#[test]
fn window_that_is_cut_loses_its_host_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    let open = |path, side| Arc::new(PciWindow::open(path, side).unwrap());
    let pair = |path| {
        File::create(path).unwrap().set_len(LEN as u64).unwrap();
        [open(path, Side::First), open(path, Side::Second)]
    };
    let pairs = paths.each_ref().map(pair);
    let mut here = Plane::new(pairs.each_ref().map(|[here, _]| Arc::clone(here)), 1);
    let mut there = pairs.each_ref().map(|[_, there]| Plane::new([Arc::clone(there)], 1));
    meet(&mut here, &mut there);
    fs::remove_file(&paths[0]).unwrap();
    assert!(!pairs[0][0].is_current() && here.is_cut(0) && !here.is_cut(1));
    assert_eq!(here.send(&[1; PACKET]), Err(Cut { count: 1 }));
    assert_eq!((all(&mut there[0], 9), all(&mut there[1], 9)), (vec![], vec![1]));
    there[0].send(&[2; PACKET]).unwrap();
    there[1].send(&[3; PACKET]).unwrap();
    assert_eq!(all(&mut here, 9), [3]);
    // Another memory is there.
    let [near, far] = pair(&paths[0]);
    here.replace(0, near);
    there[0].replace(0, far);
    meet(&mut here, &mut there);
    assert_eq!(here.send(&[4; PACKET]), Ok(()));
    assert_eq!((all(&mut there[0], 9), all(&mut there[1], 9)), (vec![4], vec![4]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever one host writes, at whatever time: the others' packets come, and once it is well again, its own.
    #[test]
    fn garbage_of_a_host_costs_only_its_own_packets(
        words in prop::collection::vec((0..LEN / 8, prop_oneof![any::<u64>(), 0..3000_u64, Just(0)]), 1..100),
    ) {
        let files = [memory(), memory()];
        let pairs = files.each_ref().map(ends);
        let mut here = Plane::new(pairs.each_ref().map(|[here, _]| Arc::clone(here)), 1);
        let mut there = pairs.each_ref().map(|[_, there]| Plane::new([Arc::clone(there)], 1));
        meet(&mut here, &mut there);
        for (number, (at, word)) in (0..).zip(words) {
            files[0].write_all_at(&word.to_ne_bytes(), at as u64 * 8).unwrap();
            here.send(&[number; PACKET]).unwrap();
            there[1].send(&[number; PACKET]).unwrap();
            prop_assert_eq!(all(&mut there[1], 9), [number]);
            let mut got = [0; PACKET];
            let came = (0..9).any(|_| here.receive(&mut got) == Some(PACKET) && got == [number; PACKET]);
            prop_assert!(came, "packet {} of the host that is well", number);
        }
        // Its process ends, and another one begins, as does the one here.
        let mut other = Plane::new([Arc::clone(&pairs[0][1])], 1 << 60);
        here.replace(0, Arc::clone(&pairs[0][0]));
        meet(&mut here, std::slice::from_mut(&mut other));
        other.send(&[7; PACKET]).unwrap();
        prop_assert_eq!(all(&mut here, 9), [7]);
    }
}
