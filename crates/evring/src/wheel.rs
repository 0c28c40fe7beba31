//! A timer wheel: sets and clears the deadlines of many connections in constant time.
//!
//! A hierarchical wheel (Varghese and Lauck 1987): a slot of the first level spans one millisecond, a slot
//! of each further level 64 times as much. The timers of a higher slot move down when the slot's time
//! comes.

use std::time::{Duration, Instant};

use shared_ring::__private::Table;

const SLOTS: u32 = 64;
const LEVELS: usize = 6;
const NONE: u32 = u32::MAX;

/// Returns `now + time`, with `time` limited to one year to avoid overflow.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now + time.min(FAR)
}

/// Deadlines by id, at most one per id. Ids are small: they index a table.
#[derive(Debug)]
pub struct TimerWheel {
    origin: Instant,
    /// Time up to which deadlines have been returned, in milliseconds since the origin.
    elapsed: u64,
    levels: [Level; LEVELS],
    timers: Table<Timer>,
    /// The last deadline and its due time: connections that are served in one turn usually have the same.
    converted: (Instant, u64),
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// One bit for each slot that holds a timer.
    occupied: u64,
    first: [u32; SLOTS as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct Timer {
    /// Due time, in milliseconds since the origin.
    due: u64,
    /// Time when its slot is processed; never later than `due`.
    processed_at: u64,
    next: u32,
    previous: u32,
    level: u8,
    slot: u8,
    set: bool,
}

impl TimerWheel {
    /// Creates an empty wheel that starts at `now`.
    pub fn new(now: Instant) -> Self {
        let level = Level { occupied: 0, first: [NONE; SLOTS as usize] };
        TimerWheel {
            origin: now,
            elapsed: 0,
            levels: [level; LEVELS],
            timers: Table::default(),
            converted: (now, 0),
        }
    }

    /// Sets or replaces the deadline of `id`. It expires at `at` or up to 1 ms later.
    pub fn set(&mut self, id: u32, at: Instant) {
        if self.converted.0 != at {
            self.converted = (at, self.due(at));
        }
        let due = self.converted.1;
        let timer = self.timers.at(id as usize);
        timer.due = due;
        // A timer with a later deadline moves when its slot is processed, so extending a deadline at each
        // request costs a single store.
        if !timer.set || due < timer.processed_at {
            self.unlink(id);
            self.link(id);
        }
    }

    /// Returns a time in whole milliseconds since the origin, rounded up.
    fn due(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin);
        let millis = u64::from(since.subsec_nanos().div_ceil(1_000_000));
        since.as_secs().saturating_mul(1000).saturating_add(millis)
    }

    /// Clears the deadline of `id`, if it has one.
    pub fn clear(&mut self, id: u32) {
        if (id as usize) < self.timers.len() {
            self.unlink(id);
        }
    }

    /// Returns the deadline of `id`, in whole milliseconds.
    pub fn deadline(&self, id: u32) -> Option<Instant> {
        let timer = self.timers.get(id as usize).filter(|timer| timer.set)?;
        Some(self.origin + Duration::from_millis(timer.due))
    }

    /// Returns when to call [`pop_expired`](TimerWheel::pop_expired) next: at the earliest deadline or before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.upcoming().map(|(_, _, at)| self.origin + Duration::from_millis(at))
    }

    /// Removes and returns one deadline that has passed.
    pub fn pop_expired(&mut self, now: Instant) -> Option<u32> {
        let now = now.saturating_duration_since(self.origin).as_millis() as u64;
        while let Some((level, slot, at)) = self.upcoming() {
            if at > now {
                break;
            }
            self.elapsed = at;
            let id = self.levels[level].first[slot as usize];
            if level == 0 && self.timers[id as usize].due <= at {
                self.unlink(id);
                return Some(id);
            }
            self.move_down(level, slot);
        }
        self.elapsed = self.elapsed.max(now);
        None
    }

    /// Relinks all timers of a slot whose time has come. If some stayed, timers on lower levels would seem
    /// to come first.
    fn move_down(&mut self, level: usize, slot: u32) {
        let mut next = self.levels[level].first[slot as usize];
        self.levels[level].first[slot as usize] = NONE;
        self.levels[level].occupied &= !(1 << slot);
        while next != NONE {
            let id = next;
            next = self.timers[id as usize].next;
            self.link(id);
        }
    }

    /// Returns the level, index and time of the occupied slot that comes first.
    fn upcoming(&self) -> Option<(usize, u32, u64)> {
        // A slot of a lower level always comes before the slots of the levels above it.
        let level = self.levels.iter().position(|level| level.occupied != 0)?;
        let width = 1u64 << (6 * level);
        let current = (self.elapsed / width) as u32 % SLOTS;
        let ahead = self.levels[level].occupied.rotate_right(current).trailing_zeros();
        let begin = (self.elapsed / width + u64::from(ahead)) * width;
        Some((level, (current + ahead) % SLOTS, begin.max(self.elapsed)))
    }

    fn link(&mut self, id: u32) {
        let timer = &mut self.timers[id as usize];
        // Beyond the last level, the timer goes to its farthest slot and moves again from there.
        let widest = 1u64 << (6 * (LEVELS - 1));
        let farthest = (self.elapsed / widest + u64::from(SLOTS) - 1) * widest;
        let when = timer.due.clamp(self.elapsed, farthest);
        let differing = (self.elapsed ^ when) | u64::from(SLOTS - 1);
        let level = ((63 - differing.leading_zeros()) as usize / 6).min(LEVELS - 1);
        let slot = (when >> (6 * level)) as u32 % SLOTS;
        let entry = &mut self.levels[level];
        let first = std::mem::replace(&mut entry.first[slot as usize], id);
        entry.occupied |= 1 << slot;
        *timer = Timer {
            due: timer.due,
            processed_at: when,
            next: first,
            previous: NONE,
            level: level as u8,
            slot: slot as u8,
            set: true,
        };
        if first != NONE {
            self.timers[first as usize].previous = id;
        }
    }

    fn unlink(&mut self, id: u32) {
        let Timer { next, previous, level, slot, set, .. } = self.timers[id as usize];
        if !set {
            return;
        }
        self.timers[id as usize].set = false;
        if next != NONE {
            self.timers[next as usize].previous = previous;
        }
        if previous != NONE {
            self.timers[previous as usize].next = next;
            return;
        }
        let level = &mut self.levels[level as usize];
        level.first[slot as usize] = next;
        if next == NONE {
            level.occupied &= !(1 << slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn later_deadline_replaces_an_earlier_one() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        wheel.set(3, start + ms(10));
        wheel.set(3, start + ms(500));
        assert_eq!(wheel.pop_expired(start + ms(499)), None);
        assert_eq!(wheel.pop_expired(start + ms(500)), Some(3));
        assert_eq!((wheel.pop_expired(start + ms(9999)), wheel.next_deadline()), (None, None));
    }

    #[test]
    fn deadline_never_expires_early() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        wheel.set(0, start + Duration::from_micros(1500));
        assert_eq!(wheel.pop_expired(start + Duration::from_micros(1999)), None);
        assert_eq!(wheel.pop_expired(start + ms(2)), Some(0));
    }

    #[test]
    fn deadline_beyond_the_last_level_expires() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        let far = Duration::from_secs(3600 * 24 * 365 * 5);
        wheel.set(0, start + far);
        let mut steps_down = 0;
        while let Some(next) = wheel.next_deadline().filter(|next| *next < start + far) {
            assert_eq!(wheel.pop_expired(next), None);
            steps_down += 1;
            assert!(steps_down < 100, "each step moves the timer down");
        }
        assert_eq!(wheel.pop_expired(start + far), Some(0));
    }

    #[test]
    fn times_are_limited_to_a_year() {
        let now = Instant::now();
        let days = |time| (after(now, time) - now).as_secs() / (24 * 3_600);
        assert_eq!([days(Duration::MAX), days(Duration::from_secs(3 * 24 * 3_600))], [365, 3]);
    }

    #[test]
    fn later_deadline_in_the_same_slot_does_not_hide_an_earlier_one() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        wheel.set(0, start + ms(192));
        wheel.set(1, start + ms(196));
        assert_eq!(wheel.pop_expired(start + ms(192)), Some(0));
        assert_eq!(wheel.pop_expired(start + ms(192)), None);
        assert_eq!(wheel.pop_expired(start + ms(196)), Some(1));
    }

    proptest! {
        /// Matches a sorted map, for short and long steps.
        #[test]
        fn expires_the_same_deadlines_as_a_sorted_map(
            steps in prop::collection::vec((0..8u32, 0..4u8, 0..24u32, any::<u64>()), 1..200)
        ) {
            let start = Instant::now();
            let (mut wheel, mut model) = (TimerWheel::new(start), BTreeMap::new());
            let mut now = 0u64;
            for (id, action, bits, noise) in steps {
                let span = noise & ((1 << bits) - 1);
                match action {
                    0 | 1 => {
                        wheel.set(id, start + ms(now + span));
                        model.insert(id, now + span);
                    }
                    2 => {
                        wheel.clear(id);
                        model.remove(&id);
                    }
                    _ => {
                        now += span;
                        let mut due = Vec::new();
                        while let Some(id) = wheel.pop_expired(start + ms(now)) {
                            due.push(id);
                        }
                        due.sort_unstable();
                        let expected: Vec<u32> =
                            model.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
                        model.retain(|_, at| *at > now);
                        prop_assert_eq!(due, expected);
                    }
                }
                let first = model.values().min().map(|at| start + ms(*at));
                prop_assert!(wheel.next_deadline() <= first || first.is_none());
                prop_assert_eq!(wheel.next_deadline().is_some(), first.is_some());
            }
        }
    }
}
