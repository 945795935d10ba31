//! Durability beyond the execution of a write: replicas have it, the disk has it.
//!
//! The worth of this: a replica that has a write can become primary, or one that has not; `WAIT`
//! does not change which. `WAITAOF` says that the primary's disk has it. What neither covers is a
//! disk that is lost with its machine and no replica.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::TransportErrorKind;
use redis::{Pipeline, Value};

use crate::config::Confirm;
use crate::connection::{Link, list, number, refusal, text};
use crate::error::{Error, Reach};

#[derive(Debug)]
pub(crate) struct Durability {
    confirm: Confirm,
    timeout: Duration,
    /// The last writes did not reach enough of them in time. Nothing more is written until they are
    /// back: each try would leave one more copy in the stream.
    short: AtomicBool,
}

impl Durability {
    pub(crate) fn new(confirm: Confirm, timeout: Duration) -> Self {
        Self { confirm, timeout, short: AtomicBool::new(false) }
    }

    /// Adds the questions to what is sent. How many there are: [`questions`](Self::questions).
    pub(crate) fn ask(&self, pipeline: &mut Pipeline) {
        let millis = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        if self.confirm.replicas > 0 {
            pipeline.cmd("WAIT").arg(self.confirm.replicas).arg(millis);
        }
        if self.confirm.disk {
            pipeline.cmd("WAITAOF").arg(1).arg(0).arg(millis);
        }
    }

    pub(crate) fn questions(&self) -> usize {
        usize::from(self.confirm.replicas > 0) + usize::from(self.confirm.disk)
    }

    /// Takes the next write as short of them until [`confirmed`](Self::confirmed) says otherwise:
    /// also when no caller waits for the answer.
    pub(crate) fn in_doubt(&self) -> InDoubt<'_> {
        InDoubt { durability: self, armed: self.questions() > 0 }
    }

    /// Checks that the last write is where it should be.
    pub(crate) fn confirmed(&self, answers: &[Value]) -> Result<(), Error> {
        let result = self.judge(answers);
        self.short.store(result.is_err(), Ordering::Relaxed);
        result
    }

    fn judge(&self, answers: &[Value]) -> Result<(), Error> {
        let mut answers = answers.iter();
        if self.confirm.replicas > 0 {
            let wanted = self.confirm.replicas;
            let have = number(answers.next().unwrap_or(&Value::Nil)).map_err(not_known)?;
            if have < u64::from(wanted) {
                return Err(Error::unknown(
                    "not-enough-replicas",
                    format!(
                        "{have} of {wanted} replicas confirmed within {:?}; check the replicas, or lower confirm_replicas",
                        self.timeout
                    ),
                ));
            }
        }
        if self.confirm.disk {
            let answer = list(answers.next().unwrap_or(&Value::Nil)).map_err(not_known)?;
            if answer.first().map(number) != Some(Ok(1)) {
                return Err(Error::unknown(
                    "not-on-disk",
                    format!("not fsynced on the primary within {:?}; check its disk and log", self.timeout),
                ));
            }
        }
        Ok(())
    }

    /// After a shortage: whether those who are to confirm are back. Before anything more is
    /// written. The `probe` is a key that is never read: those who are to confirm are asked for
    /// what this connection has written, and a new one has written nothing, so all would have it.
    pub(crate) async fn check_recovered(
        &self,
        link: &Link,
        probe: &str,
        within: Duration,
    ) -> Result<(), Error> {
        if !self.short.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        pipeline.cmd("SET").arg(probe).arg("").arg("PX").arg(1);
        self.ask(&mut pipeline);
        let answers = link.request(&pipeline, within + self.timeout).await.map_err(Error::before_anything)?;
        let (written, confirmations) =
            answers.split_first().ok_or_else(|| Error::unexpected("a probe").before_anything())?;
        refusal(written).map_or(Ok(()), Err)?;
        self.confirmed(confirmations).map_err(Error::before_anything)
    }

    /// Returns true if the server can confirm what is asked for.
    ///
    /// # Errors
    ///
    /// Says what it lacks.
    pub(crate) fn check(&self, server: &str, persistence: &str, replication: &str) -> Result<(), Error> {
        let lacks =
            |kind, words: String| Err(Error { reach: Reach::Route, kind, class: "configuration", words });
        let replicas: u32 =
            field(replication, "connected_slaves").and_then(|it| it.parse().ok()).unwrap_or(0);
        if replicas < self.confirm.replicas {
            let words = format!(
                "{replicas} replicas are connected, and confirm_replicas is {}; check the replicas, or lower it",
                self.confirm.replicas
            );
            return lacks(TransportErrorKind::Unavailable, words);
        }
        if self.confirm.disk && field(persistence, "aof_enabled") != Some("1") {
            let words = "confirm_disk needs appendonly yes on the server: CONFIG SET appendonly yes";
            return lacks(TransportErrorKind::Invalid, words.to_owned());
        }
        let version = field(server, "redis_version").unwrap_or("0");
        if self.confirm.disk && version_of(version) < (7, 2) {
            let words = format!("confirm_disk needs Redis 7.2 or newer; this server is {version}");
            return lacks(TransportErrorKind::Unsupported, words);
        }
        Ok(())
    }
}

/// Something was written, and it is not confirmed yet where it is.
pub(crate) struct InDoubt<'d> {
    durability: &'d Durability,
    armed: bool,
}

impl InDoubt<'_> {
    pub(crate) fn settle(mut self) {
        self.armed = false;
    }
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.durability.short.store(true, Ordering::Relaxed);
        }
    }
}

/// Refuses a server that is too old, by its answer to `INFO server`.
pub(crate) fn check_version(server: &str) -> Result<(), Error> {
    let version = field(server, "redis_version").unwrap_or("0");
    if version_of(version) < (7, 0) {
        return Err(Error::too_old(&format!("Redis {version}")));
    }
    Ok(())
}

/// Refuses a server that deletes streams when it is full, by its answer to `INFO memory`.
pub(crate) fn check_eviction(memory: &str) -> Result<(), Error> {
    let policy = field(memory, "maxmemory_policy").unwrap_or("noeviction");
    if matches!(field(memory, "maxmemory"), None | Some("0")) || policy == "noeviction" {
        return Ok(());
    }
    if policy.starts_with("volatile-") {
        // Streams never expire; what does is made again.
        tracing::warn!(policy, "a full redis may evict leases; set maxmemory-policy noeviction");
        return Ok(());
    }
    Err(Error {
        reach: Reach::Route,
        kind: TransportErrorKind::Invalid,
        class: "configuration",
        words: format!(
            "maxmemory-policy is {policy}: a full server would evict streams, with confirmed messages in them: \
             CONFIG SET maxmemory-policy noeviction"
        ),
    })
}

/// The answers to four `INFO` questions, as texts.
pub(crate) fn infos(answers: &[Value]) -> Result<[String; 4], Error> {
    match answers {
        [server, persistence, replication, memory] => {
            Ok([text(server)?, text(persistence)?, text(replication)?, text(memory)?])
        }
        _ => Err(answers.iter().find_map(refusal).unwrap_or_else(|| Error::unexpected("INFO"))),
    }
}

/// A value in an answer to `INFO`.
pub(crate) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn version_of(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Error of a write that is there, of which was not said whether it is where it should be.
fn not_known(error: Error) -> Error {
    Error { reach: Reach::Unknown, ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durability(replicas: u32, disk: bool) -> Durability {
        Durability::new(Confirm { replicas, disk }, Duration::from_secs(1))
    }

    #[test]
    fn what_too_few_have_is_unknown_and_never_confirmed() {
        assert_eq!(durability(0, false).confirmed(&[]), Ok(()));
        assert_eq!(durability(2, false).confirmed(&[Value::Int(2)]), Ok(()));
        let short = durability(2, false);
        assert_eq!(short.confirmed(&[Value::Int(1)]).unwrap_err().reach, Reach::Unknown);
        assert!(short.short.load(Ordering::Relaxed), "and it is remembered");
        let disk = |local| Value::Array(vec![Value::Int(local), Value::Int(0)]);
        assert_eq!(durability(0, true).confirmed(&[disk(1)]), Ok(()));
        assert_eq!(durability(0, true).confirmed(&[disk(0)]).unwrap_err().class, "not-on-disk");
        assert_eq!(durability(1, true).confirmed(&[]).unwrap_err().reach, Reach::Unknown);
    }

    #[test]
    fn a_server_that_can_not_confirm_says_what_it_lacks() {
        let server = "# Server\r\nredis_version:7.0.15\r\n";
        let check =
            |of: Durability, aof: &str, replicas: &str| of.check(server, aof, replicas).map_err(|it| it.kind);
        assert_eq!(check(durability(0, false), "", ""), Ok(()));
        assert_eq!(check(durability(1, false), "", "connected_slaves:1\r\n"), Ok(()));
        assert_eq!(
            check(durability(1, false), "", "connected_slaves:0\r\n"),
            Err(TransportErrorKind::Unavailable)
        );
        assert_eq!(check(durability(0, true), "aof_enabled:0\r\n", ""), Err(TransportErrorKind::Invalid));
        assert_eq!(check(durability(0, true), "aof_enabled:1\r\n", ""), Err(TransportErrorKind::Unsupported));
        assert!(check_version(server).is_ok());
        assert!(check_version("redis_version:6.2.14\r\n").is_err());
    }

    #[test]
    fn only_what_would_delete_streams_is_refused() {
        let check = |maxmemory: &str, policy: &str| {
            check_eviction(&format!("maxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n")).is_ok()
        };
        assert!(!check("1024", "allkeys-lru") && !check("1024", "allkeys-random"));
        assert!(check("0", "allkeys-lru") && check("1024", "noeviction") && check("1024", "volatile-lru"));
        assert!(check_eviction("").is_ok(), "a server that does not tell");
    }
}
