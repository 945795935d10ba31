//! The report of a run.

use std::fmt;
use std::time::Duration;

use examples_shared::transports::Failed;

use crate::databases::Database;
use crate::ledger::Booked;
use crate::progress::Seen;
use crate::relays::Relayed;
use crate::shop::Shop;

/// Figures of a run.
#[derive(Debug)]
pub(crate) struct Report {
    committed: u64,
    committed_in_all: u64,
    refused: u64,
    published: u64,
    killed: u64,
    drained: bool,
    delivered: u64,
    repeated: u64,
    out_of_order: u64,
    lost: u64,
    phantom: u64,
    effects: u64,
    money_in_shop: i64,
    money_in_ledger: i64,
    took: Duration,
    relayed_in: Duration,
    peak_memory: Option<u64>,
}

impl Report {
    pub(crate) async fn new<D: Database>(
        shop: &Shop<D>,
        relayed: Relayed,
        booked: &Booked,
        seen: &Seen,
        took: Duration,
        relayed_in: Duration,
    ) -> Result<Self, Failed> {
        let (mut lost, mut phantom) = (0, 0);
        let mut of_strangers = booked.effects.clone();
        for (customer, committed) in shop.customers().await? {
            let effects = of_strangers.remove(&customer).unwrap_or_default();
            lost += u64::from(committed.saturating_sub(effects));
            phantom += u64::from(effects.saturating_sub(committed));
        }
        phantom += of_strangers.into_values().map(u64::from).sum::<u64>();
        Ok(Self {
            committed: shop.committed(),
            committed_in_all: shop.committed_in_all(),
            refused: shop.refused,
            published: relayed.published,
            killed: relayed.killed,
            drained: relayed.drained,
            delivered: booked.delivered,
            repeated: booked.repeated,
            out_of_order: seen.overtaken(),
            lost,
            phantom,
            effects: booked.effects.values().copied().map(u64::from).sum(),
            money_in_shop: shop.cents().await?,
            money_in_ledger: booked.cents,
            took,
            relayed_in,
            peak_memory: peak_memory(),
        })
    }

    /// Returns true if every promise was kept: nothing lost, phantom or out of order, and every
    /// effect once.
    pub(crate) fn is_right(&self) -> bool {
        self.lost == 0
            && self.phantom == 0
            && self.out_of_order == 0
            && self.committed_in_all == self.effects
            && self.money_in_shop == self.money_in_ledger
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line =
            |name: &str, value: &dyn fmt::Display, note: &str| writeln!(f, "{name:<14} {value:>9}  {note}");
        line("committed", &self.committed, "events, each in one transaction with its order")?;
        if self.committed_in_all > self.committed {
            let found = self.committed_in_all - self.committed;
            line("found", &found, "events of earlier runs over the same databases")?;
        }
        if self.refused > 0 {
            line("refused", &self.refused, "lines that are no orders, reported above")?;
        }
        line("published", &self.published, "confirmed to relays that lived to hear it, repeats included")?;
        if self.killed > 0 {
            line("relays killed", &self.killed, "without a drain")?;
        }
        line("delivered", &self.delivered, "to the ledger, repeats included")?;
        line("repeated", &self.repeated, "deliveries that changed nothing")?;
        line("out of order", &self.out_of_order, "events that a newer one of the customer has overtaken")?;
        line("lost", &self.lost, "events without an effect")?;
        line("phantom", &self.phantom, "effects without an event")?;
        line("effects", &self.effects, if self.is_right() { "each event exactly once" } else { "WRONG" })?;
        let rate = |span: Duration| {
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let rate = self.committed as f64 / span.as_secs_f64().max(0.001);
            format!("{rate:.0}")
        };
        line("took", &format!("{:.1} s", self.took.as_secs_f64()), "")?;
        line(
            "rate",
            &rate(self.relayed_in),
            "events a second, from the start of the relays to the last effect",
        )?;
        if !self.drained {
            line("stop", &"killed", "a relay did not stop in time")?;
        }
        if let Some(peak) = self.peak_memory {
            line("peak memory", &format!("{peak} MiB"), "resident, of the whole process")?;
        }
        Ok(())
    }
}

/// Returns the peak memory of this process in MiB, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes / 1024)
}
