//! The lab measures the mechanisms on this machine.

mod allocator;
mod cache;
mod client;
mod command;
mod experiments;
mod failure;
mod floors;
mod goals;
mod load;
mod machine;
mod measure;
mod outcome;
mod ratio;
mod report;
mod run;
mod say;
mod serve;
mod statistics;
mod tables;

use std::process::ExitCode;

use clap::Parser;
use evring_sim::WatchingAllocator;

use command::{Command, Lab};

#[global_allocator]
static ALLOCATOR: WatchingAllocator<allocator::Counting> = WatchingAllocator(allocator::Counting);

fn main() -> ExitCode {
    let result = match Lab::parse().command {
        Command::List(options) => run::list(&options),
        Command::Run(options) => run::run(&options),
        Command::Report(options) => report::write(&options),
        Command::Tables(options) => tables::tables(&options),
        Command::Recommend(options) => experiments::recommend(&options),
        Command::Load(options) => load::load(&options),
        Command::Serve(options) => serve::serve(&options),
        Command::Client(options) => client::client(&options),
        Command::Spin => experiments::spin(),
        Command::Upcalls(options) => experiments::answer_upcalls(&options),
        Command::Invoke(options) => experiments::invoke(&options),
        Command::Complete(options) => experiments::complete(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lab: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
