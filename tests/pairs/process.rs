//! A program of this crate in a process of its own.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use outbox_tests::halt::Halt;
use outbox_tests::life::Life;
use outbox_tests::pair::Pair;
use outbox_tests::record::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// A relay or an inbox. Dropped, it is killed.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a relay. Returns when it works.
    pub(crate) fn relay(pair: &Pair) -> Self {
        Self::start_relay(pair, None)
    }

    /// Starts a relay that dies at a point of its work. Returns when it works.
    pub(crate) fn relay_until(pair: &Pair, halt: Halt) -> Self {
        Self::start_relay(pair, Some(halt))
    }

    fn start_relay(pair: &Pair, halt: Option<Halt>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relay-process"));
        command
            .envs(pair.variables())
            .envs(halt.map(Halt::variable))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the relay's program can be started");
        let said = BufReader::new(child.stdout.take().expect("its output is piped")).lines().next();
        assert_eq!(said.and_then(Result::ok).as_deref(), Some("relaying"), "the relay did not start");
        Self { child }
    }

    /// Starts an inbox. It may be dead before this returns.
    pub(crate) fn inbox(pair: &Pair, life: Life) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inbox-process"));
        command.envs(pair.variables()).envs(life.variables()).stdin(Stdio::piped());
        Self { child: command.spawn().expect("the inbox's program can be started") }
    }

    fn signal(&self, signal: Signal) {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process has a number");
        kill_process(pid, signal).expect("the process is still there");
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("the process is still there");
        self.child.wait().expect("it is waited for once");
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Stops it in order, as at a deployment.
    pub(crate) fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it is waited for once").success(), "the process did not end well");
    }

    /// Waits until it has aborted, as configured.
    pub(crate) async fn aborted(mut self, what: &str) {
        // Listening before looking: every child of this program that ends raises it.
        let mut ends = signal(SignalKind::child()).expect("the signal can be listened for");
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                    return status;
                }
                ends.recv().await;
            }
        };
        let status = timeout(PATIENCE, ended).await;
        let status = status.unwrap_or_else(|_| panic!("{what}: it lives after {PATIENCE:?}"));
        assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{what}: {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
