//! The program `outbox`.

use std::process::ExitCode;

fn main() -> ExitCode {
    outbox_cli::main()
}
