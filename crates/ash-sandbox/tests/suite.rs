//! The tests that need no process of their own, in one executable: each file is a module.

#[cfg(feature = "sandbox")]
mod child;
mod custom_pipes;
mod epochs;
mod example_handlers;
mod executions_agree;
mod first_and_last;
mod forks;
mod fragments;
#[cfg(feature = "sandbox")]
mod generated;
mod generated_modules;
mod governor;
mod kept;
mod known_answers;
mod lanes;
#[cfg(feature = "sandbox")]
mod memory;
mod model;
mod modules;
mod operations;
mod planted_pointers;
mod rules;
mod sandbox;
mod shared_data;
mod shared_table;
mod support;
mod time_bound;
mod two_engines;
