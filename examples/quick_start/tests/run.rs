//! The quick start: an event that was written in a transaction is handled, and Ctrl-C stops the
//! program in order.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use examples_shared::program::end;

const PROGRAM: &str = env!("CARGO_BIN_EXE_quick-start");

#[test]
fn the_quick_start_handles_what_it_wrote_and_stops_when_asked() {
    let mut command = Command::new(PROGRAM);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, mut line) = (BufReader::new(child.stdout.take().unwrap()), String::new());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "invoice for order 1: 4200 cents\n");
    let asked = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(asked.success() && end(&mut child).success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}
