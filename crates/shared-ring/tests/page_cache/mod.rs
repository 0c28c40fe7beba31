//! What the page cache has of files on a disk, as the kernel tells it.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs::File;
use std::io::IoSliceMut;
use std::ptr;
use std::thread;

use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(crate) const PAGE: usize = 4096;

/// Returns whether the file system tells what is cached, by a file that is not empty. If not, prints why a test makes
/// no sense.
pub(crate) fn tells(file: &File) -> bool {
    let mut bytes = [0; PAGE];
    let mut read = |flags| preadv2(file, &mut [IoSliceMut::new(&mut bytes)], 0, flags);
    assert!(read(ReadWriteFlags::empty()).unwrap() > 0);
    let cached = read(ReadWriteFlags::NOWAIT);
    if let Err(error) = cached {
        println!("not tested: preadv2(2) with RWF_NOWAIT, of what is cached: {error}");
    }
    cached.is_ok()
}

/// Removes a file from the page cache. Returns whether nothing of it is cached. If not, prints why a test makes no sense.
pub(crate) fn evict(file: &File) -> bool {
    // What the kernel is using stays.
    for _ in 0..100 {
        fadvise(file, 0, None, Advice::DontNeed).unwrap();
        if !cached_pages(file).contains(&true) {
            return true;
        }
        thread::yield_now();
    }
    println!("not tested: posix_fadvise(2) with POSIX_FADV_DONTNEED leaves pages in the cache");
    false
}

/// Returns whether each page of a file is cached.
pub(crate) fn cached_pages(file: &File) -> Vec<bool> {
    let len = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0_u8; len.div_ceil(PAGE)];
    // SAFETY: a new mapping, which no one reads; the vector has an element for each of its pages.
    unsafe {
        let map = mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap();
        assert_eq!(libc::mincore(map, len, pages.as_mut_ptr()), 0);
        munmap(map, len).unwrap();
    }
    pages.into_iter().map(|page| page & 1 == 1).collect()
}
