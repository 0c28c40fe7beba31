//! The program's memory mappings: proc_pid_maps(5).

use std::fs;
use std::ops::Range;

use crate::Error;

/// Returns whether a range of addresses is within executable memory.
pub(crate) fn contains(range: &Range<usize>) -> Result<bool, Error> {
    is_within(range, 'x')
}

/// Returns whether a range of addresses is within writable memory.
pub(crate) fn is_mapped(range: &Range<usize>) -> Result<bool, Error> {
    is_within(range, 'w')
}

fn is_within(range: &Range<usize>, permission: char) -> Result<bool, Error> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(Error::system("/proc/self/maps"))?;
    let mut all = maps.lines().filter_map(|line| addresses(line, permission));
    Ok(all.any(|at| at.start <= range.start && range.end <= at.end))
}

/// Parses the address range of a line, such as `55d0c000-55d0d000 r-xp 00000000 08:01 42 /bin/x`.
/// Returns `None` if its permissions lack `permission`.
fn addresses(line: &str, permission: char) -> Option<Range<usize>> {
    let (range, fields) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let range = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
    fields.split(' ').next()?.contains(permission).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_executable_and_data_is_not() {
        let here = functions_are_executable_and_data_is_not as fn() as usize;
        assert_eq!(contains(&(here..here + 1)), Ok(true));
        let local = &raw const here as usize;
        assert_eq!(contains(&(local..local + 8)), Ok(false));
        assert_eq!(contains(&(0..1)), Ok(false));
        assert_eq!(addresses("10-20 rw-p 0 0:0 0", 'x'), None);
        assert_eq!(addresses("10-20 r-xp 0 0:0 0 /bin/x", 'x'), Some(0x10..0x20));
        assert_eq!(is_mapped(&(local..local + 8)), Ok(true));
    }
}
