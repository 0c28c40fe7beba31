//! Items that simulations inspect and benchmarks measure. Not a part of the public interface.

pub use crate::driver::Usage;
pub use crate::wheel::TimerWheel;
