//! Examination of the file beneath the outbox: free pages, and a write-ahead log that is not
//! checkpointed.
//!
//! A file never shrinks by itself: pages of removed rows are used again. Its log grows for as long
//! as a reader keeps an old snapshot, and each read gets slower with it.

use std::path::Path;

use outbox_contract::admin::Diagnosis;
use sqlx::Row;
use sqlx::sqlite::SqlitePool;

use crate::pools::Pools;

/// Values from which something is a finding, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Free pages, if they are more than half of the file.
    pub(crate) free: u64,
    /// Part of the log that a checkpoint can't take over.
    pub(crate) behind: u64,
    /// Log file. After a checkpoint the store's own connections cut it to 64 MiB.
    pub(crate) log: u64,
}

pub(crate) const LIMITS: Limits = Limits { free: 256 << 20, behind: 16 << 20, log: 128 << 20 };

/// State of a file, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    file: u64,
    free: u64,
    /// The log file, before a checkpoint was tried.
    log: u64,
    /// Part of the log that the checkpoint could not take over.
    behind: u64,
}

/// Examines the file. A checkpoint that waits for nobody is part of it, as after each large commit.
pub(crate) async fn find(pools: &Pools, limits: Limits) -> Result<Vec<Diagnosis>, sqlx::Error> {
    let log = pools.place.as_ref().map_or(0, |place| log_size(place.path()));
    let page_size = number(&pools.deciding, "pragma page_size", 0).await?;
    let pages = number(&pools.deciding, "pragma page_count", 0).await?;
    let free = number(&pools.deciding, "pragma freelist_count", 0).await?;
    // Busy, pages of the log, pages of it that are in the file; -1 without a log.
    let row = sqlx::query("pragma wal_checkpoint(passive)").fetch_one(&pools.deciding).await?;
    let (logged, taken): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
    let behind = u64::try_from(logged - taken).unwrap_or_default();
    let figures =
        Figures { file: pages * page_size, free: free * page_size, log, behind: behind * page_size };
    Ok(figures.diagnoses(limits))
}

impl Figures {
    /// Judges the state. Pure.
    fn diagnoses(self, limits: Limits) -> Vec<Diagnosis> {
        let Self { file, free, log, behind } = self;
        let mut found = Vec::new();
        if free >= limits.free && free > file / 2 {
            found.push(Diagnosis::bloat(
                format!("{} of the file's {} are free", Diagnosis::size(free), Diagnosis::size(file)),
                "the space is used again. To give it back: vacuum, while no program writes; it needs as much space again",
            ));
        }
        if behind >= limits.behind {
            found.push(Diagnosis::cleanup(
                format!(
                    "{} of the write-ahead log can't be checkpointed: some connection has been reading an older snapshot, and the log grows",
                    Diagnosis::size(behind)
                ),
                "end the long transaction: look for statements that were begun and not finished, and for open shells and backup tools",
            ));
        } else if log >= limits.log {
            found.push(Diagnosis::bloat(
                format!("the write-ahead log had {} when it was last checkpointed", Diagnosis::size(log)),
                "leave wal_autocheckpoint on in every program, and transactions short; then pragma wal_checkpoint(truncate)",
            ));
        }
        found
    }
}

/// Returns the size of the log of a database file; 0 without one.
fn log_size(file: &Path) -> u64 {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    std::fs::metadata(name).map_or(0, |log| log.len())
}

async fn number(pool: &SqlitePool, pragma: &'static str, column: usize) -> Result<u64, sqlx::Error> {
    let row = sqlx::query(pragma).fetch_one(pool).await?;
    Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or_default())
}
