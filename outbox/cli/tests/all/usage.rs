//! Help, completions, manual pages; calls that make no sense.

use std::process::Stdio;

use crate::outbox::{DONE, Outbox, USAGE, bare, end};

#[test]
fn help_shows_every_command_and_the_exit_codes() {
    let help = end(bare(&["--help"]), "").ends(DONE).stdout;
    for part in ["relay", "explain", "requeue", "doctor", "--store", "Exit codes:", "130", "begin with:"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    for (arguments, words) in [
        (&["no-such-command"][..], "no-such-command"),
        (&["status", "--no-such-flag"], "--no-such-flag"),
        (&["status", "--json", "--table"], "cannot be used with"),
        (&["release", "orders"], "2 values required"),
        (&["dead", "show", "123"], "is not a UUID"),
        (&["dead", "list", "--route", "a", "--all-routes"], "cannot be used with"),
        (&[], "Usage"),
    ] {
        end(bare(arguments), "").ends(USAGE).says(words);
    }
}

#[test]
fn completions_and_manual_pages_are_made_without_settings() {
    for shell in ["bash", "zsh", "fish"] {
        let script = end(bare(&["completions", shell]), "").ends(DONE).stdout;
        assert!(script.contains("outbox") && script.contains("requeue"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    end(bare(&["man", folder.path().to_str().unwrap()]), "").ends(DONE);
    let page = std::fs::read_to_string(folder.path().join("outbox-relay.1")).unwrap();
    assert!(page.contains("SIGTERM"), "{page}");
}

#[test]
fn a_reader_that_has_seen_enough_breaks_nothing() {
    let outbox = Outbox::sqlite();
    let mut command = outbox.command(&["migrate", "--print"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
