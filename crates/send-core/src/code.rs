//! The program's code, as the system has it mapped: proc_pid_maps(5).

use std::fs;
use std::ops::Range;

use crate::Error;

/// Whether a range of addresses lies in code.
pub(crate) fn contains(range: &Range<usize>) -> Result<bool, Error> {
    lies_in(range, 'x')
}

/// Whether it lies in memory that can be written to.
pub(crate) fn is_mapped(range: &Range<usize>) -> Result<bool, Error> {
    lies_in(range, 'w')
}

fn lies_in(range: &Range<usize>, right: char) -> Result<bool, Error> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(Error::system("/proc/self/maps"))?;
    let mut all = maps.lines().filter_map(|line| addresses(line, right));
    Ok(all.any(|at| at.start <= range.start && range.end <= at.end))
}

/// The addresses of a line, such as `55d0c000-55d0d000 r-xp 00000000 08:01 42 /bin/x`, if what is there
/// may be used so.
fn addresses(line: &str, right: char) -> Option<Range<usize>> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let range = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
    rest.split(' ').next()?.contains(right).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_code_and_data_is_not() {
        let here = functions_are_code_and_data_is_not as fn() as usize;
        assert_eq!(contains(&(here..here + 1)), Ok(true));
        let local = &raw const here as usize;
        assert_eq!(contains(&(local..local + 8)), Ok(false));
        assert_eq!(contains(&(0..1)), Ok(false));
        assert_eq!(addresses("10-20 rw-p 0 0:0 0", 'x'), None);
        assert_eq!(addresses("10-20 r-xp 0 0:0 0 /bin/x", 'x'), Some(0x10..0x20));
        assert_eq!(is_mapped(&(local..local + 8)), Ok(true));
    }
}
