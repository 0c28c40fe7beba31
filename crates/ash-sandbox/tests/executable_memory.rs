//! Generated code lies in pages that can be executed and not written, and that are given back. A
//! process of its own, so that no other test generates code meanwhile.

use std::fs;

use ash_sandbox::ilp::{Gauge, Mode, PipeList, Prefer, byte_swap, crc32c};

/// The anonymous mappings that can be executed.
fn executable() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.lines().any(|line| line.contains("wx")), "written and executed: {maps}");
    maps.lines()
        .filter(|line| line.contains("r-xp") && !line.contains('/') && !line.contains('['))
        .map(str::to_owned)
        .collect()
}

#[test]
fn code_is_never_writable_and_is_freed_with_its_loop() {
    let before = executable();
    let mut list = PipeList::new();
    list.add(crc32c::pipe()).unwrap();
    list.add(byte_swap::pipe(Gauge::Bits32)).unwrap();
    let loops: Vec<_> =
        (0..4).map(|_| list.compile_with(Mode::Write, Prefer::Generated).unwrap()).collect();
    assert_ne!(executable(), before, "code has been made executable");
    for ilp in &loops {
        ilp.write_in_place(&mut ilp.state(), &mut [1; 100]).unwrap();
    }
    assert_ne!(executable(), before);
    drop(loops);
    assert_eq!(executable(), before, "all of it has been given back");
}
