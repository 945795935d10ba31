//! Lists of messages: pages of a view, with filters that a store does not have.

use std::time::{Duration, Instant};

use outbox::admin::{Listed, View};

use crate::problem::Problem;
use crate::selection::Selection;
use crate::visit::Visit;

/// Number of messages that are read at once.
const STEP: usize = 500;

/// Limits of one page's search.
const MAX_MESSAGES: usize = 2_000;
const MAX_BYTES: usize = 64 * 1_024 * 1_024;
const MAX_TIME: Duration = Duration::from_secs(2);

/// A part of a list.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) found: Vec<Listed>,
    /// Number of messages that were looked at.
    pub(crate) looked_at: usize,
    /// Offset at which the list continues; `None` at its end.
    pub(crate) next: Option<usize>,
}

/// Reads messages from an offset until so many are found, or a limit is reached.
pub(crate) async fn scan(
    visit: &Visit,
    view: View,
    selection: &Selection,
    offset: usize,
    wanted: usize,
) -> Result<Scan, Problem> {
    let (mut scan, mut bytes, started) = (Scan::default(), 0, Instant::now());
    // One more than is shown tells whether there are more.
    let step = if selection.is_plain() { wanted.saturating_add(1).min(STEP) } else { STEP };
    loop {
        let page = selection.page(offset + scan.looked_at, step);
        let page = visit.ask(visit.store().browse(view, &page)).await?;
        let is_end = page.is_empty();
        for listed in page {
            if scan.found.len() == wanted {
                scan.next = Some(offset + scan.looked_at);
                return Ok(scan);
            }
            scan.looked_at += 1;
            bytes += listed.stored.message.bytes();
            if selection.takes(&listed) {
                scan.found.push(listed);
            }
        }
        if is_end {
            return Ok(scan);
        }
        if scan.looked_at >= MAX_MESSAGES || bytes >= MAX_BYTES || started.elapsed() >= MAX_TIME {
            scan.next = Some(offset + scan.looked_at);
            return Ok(scan);
        }
    }
}
