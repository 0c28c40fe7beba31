//! The tests of the site, most of them without a kernel, in one executable: each file is a module.

mod cases;
mod directories;
mod drops;
mod exchange;
mod handlers;
mod selection;
mod serving;
mod stage;
mod vectors;
