#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod app;
mod args;
mod commands;
mod escape;
mod exit;
mod findings;
mod log;
mod message;
mod open;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "no_otlp.rs"]
mod otlp;
mod out;
mod redact;
mod settings;
mod time;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::exit::Failed;

/// Runs the program with the arguments of the process. Returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Cli::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Nothing is left to do if it can't be written.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            out::remark(&format!("outbox: no threads could be started: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(commands::run(args));
    // Tasks that a command has left running, such as a connection attempt, end with the process.
    // Ended one after the other, tasks of MongoDB's driver panic over those that are gone already.
    std::mem::forget(runtime);
    match &outcome {
        Ok(_) | Err(Failed::ReaderGone | Failed::Interrupted) => {}
        Err(failed) => out::remark(&format!("outbox: {failed}")),
    }
    exit::code(&outcome)
}
