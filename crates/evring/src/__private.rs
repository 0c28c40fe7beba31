//! Items that simulations inspect, benchmarks measure and other crates of this workspace use. Not a part of the public
//! interface.

pub use crate::driver::Usage;
pub use crate::input_file::read as read_input_file;
pub use crate::wheel::TimerWheel;
pub use shared_ring::__private::catch_panic;
