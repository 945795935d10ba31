//! Which tests failed is read right from what cargo says, for `tests/run` runs them again: a failure that is overlooked there would make a bad run
//! a good one.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// What `tests/failures.awk` makes of a log.
fn failures(log: &str) -> Vec<String> {
    let script = outbox_tests::root().join("tests/failures.awk");
    let mut awk = Command::new("awk");
    awk.arg("-f").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut awk = awk.spawn().expect("awk is there");
    awk.stdin.take().expect("it reads").write_all(log.as_bytes()).expect("it reads all");
    let output = awk.wait_with_output().expect("it ends");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("it writes text").lines().map(str::to_owned).collect()
}

const TWO_PROGRAMS: &str = "
running 3 tests
test tests::ok ... ok
test tests::one ... FAILED
test tests::two ... FAILED

failures:

---- tests::one stdout ----
failures:
    printed by the test

---- tests::two stdout ----

failures:
    tests::one
    tests::two

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.09s

error: test failed, to rerun pass `-p outbox --lib`
     Running tests/other.rs (target/debug/deps/other-0)

running 1 test
test good ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s

   Doc-tests outbox

failures:
    outbox/src/lib.rs - Name (line 4)

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.14s

error: doctest failed, to rerun pass `-p outbox --doc`
error: 2 targets failed:
    `-p outbox --lib`
    `-p outbox --doc`
";

#[test]
fn every_failed_test_is_named_with_its_program() {
    assert_eq!(
        failures(TWO_PROGRAMS),
        [
            "-p outbox --lib\ttests::one",
            "-p outbox --lib\ttests::two",
            "-p outbox --doc\toutbox/src/lib.rs - Name (line 4)"
        ]
    );
}

#[test]
fn a_failure_without_a_name_is_told() {
    let unnamed = |log: &str| failures(log).iter().any(|line| line.ends_with('\t'));
    assert!(!unnamed(TWO_PROGRAMS));
    // A program that was aborted says nothing of its tests.
    let aborted = "running 1 test\nerror: test failed, to rerun pass `-p outbox --test a`\nerror: 1 target failed:\n    `-p outbox --test a`\n";
    assert!(unnamed(aborted));
    // A name is missing from the list.
    assert!(unnamed(&TWO_PROGRAMS.replace("1 passed; 2 failed", "1 passed; 3 failed")));
    // A program could not be run at all.
    assert!(unnamed(&TWO_PROGRAMS.replace("2 targets failed", "3 targets failed")));
    // Nothing was built.
    assert!(unnamed("error: could not compile `outbox`\n"));
}
