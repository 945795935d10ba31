//! Leases: owned buckets and their epochs, takeover and release.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::backend::{
    BUCKETS, Bucket, BucketSet, Epoch, Lease, Leased, LowWater, Paused, Position,
};

use super::event::{Command, Report};
use super::{Core, Drain, sabotaged};

/// Leases as the core knows them.
#[derive(Debug)]
pub(super) struct Leases {
    epochs: [Epoch; BUCKETS],
    /// Life of the database in which everything in memory was read.
    life: i64,
    /// Instant before which batches may start.
    until: Duration,
    is_route_paused: bool,
    giving_back: Vec<GivingBack>,
    /// Buckets that the broker refused for a newer epoch: the epoch that it refused, and when.
    fenced: BTreeMap<Bucket, (Epoch, Duration)>,
}

/// Buckets being given up. They are released when nothing of them is unconfirmed and delivered
/// messages are removed.
#[derive(Clone, Copy, Debug)]
struct GivingBack {
    buckets: BucketSet,
    low_water: Position,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            epochs: [Epoch::default(); BUCKETS],
            life: 0,
            until: Duration::ZERO,
            is_route_paused: false,
            giving_back: Vec::new(),
            fenced: BTreeMap::new(),
        }
    }
}

impl Leases {
    pub(super) fn epoch(&self, bucket: Bucket) -> Epoch {
        self.epochs[usize::from(bucket.0)]
    }

    /// Returns the life of the database in which everything in memory was read.
    pub(super) fn life(&self) -> i64 {
        self.life
    }

    /// Returns true if a batch may start (promise P7). Publishers check the clock once more.
    pub(super) fn holds(&self, now: Duration) -> bool {
        now < self.until
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_route_paused
    }

    pub(super) fn is_giving_back(&self) -> bool {
        !self.giving_back.is_empty()
    }

    /// Records that the broker knows a newer epoch of a bucket.
    pub(super) fn fenced(&mut self, bucket: Bucket, now: Duration) {
        self.fenced.insert(bucket, (self.epoch(bucket), now));
    }

    /// Returns the buckets that a heartbeat that began at `asked` left to this relay, under the
    /// epoch that the broker had refused before.
    fn take_fenced(&mut self, asked: Duration, kept: &BucketSet) -> BucketSet {
        let mut taken = BucketSet::EMPTY;
        let epochs = &self.epochs;
        self.fenced.retain(|bucket, (epoch, at)| {
            let is_same = epochs[usize::from(bucket.0)] == *epoch;
            if is_same && *at < asked && kept.contains(*bucket) {
                taken.insert(*bucket);
            }
            is_same && *at >= asked
        });
        taken
    }

    fn given_back(&self) -> BucketSet {
        self.giving_back.iter().fold(BucketSet::EMPTY, |set, given| set.union(&given.buckets))
    }

    /// Returns a low-water mark of these buckets, under the epochs under which they were read.
    fn mark(&self, buckets: BucketSet, position: Position) -> LowWater {
        let covered = buckets.iter().map(|bucket| (bucket, self.epoch(bucket))).collect();
        LowWater::new(position, covered, self.life)
    }
}

impl Core {
    /// Takes over gained buckets, and drops lost ones. A bucket that came back under another epoch
    /// is both.
    pub(super) fn leased(
        &mut self,
        leased: &Leased,
        surplus: BucketSet,
        (asked, until): (Duration, Duration),
    ) {
        if self.draining.is_some() {
            return;
        }
        self.leases.life = leased.life;
        self.leases.until = until;
        let was_idle = self.leases.is_route_paused || self.reading.owned.is_empty();
        let same = |lease: &&Lease| self.leases.epoch(lease.bucket) == lease.epoch;
        let kept: BucketSet = leased.leases.iter().filter(same).map(|lease| lease.bucket).collect();
        let lost = self.reading.owned.without(&kept);
        if !lost.is_empty() {
            self.report(Report::LostBuckets(lost.len()));
            self.lose_lease(lost);
        }
        let gained = self.acquire(&leased.leases);
        self.pause(&leased.paused, asked);
        if !surplus.is_empty() {
            self.report(Report::GivingUp(surplus.len()));
            self.give_up(surplus);
        }
        let fenced = self.leases.take_fenced(asked, &self.reading.owned);
        if !fenced.is_empty() {
            self.report(Report::TakingAnew(fenced.len()));
            self.give_up(fenced);
        }
        let mark = self.low_water();
        self.commands.push(Command::Save(mark));
        if gained || was_idle || self.looking.lapsed {
            self.look_soon();
        }
    }

    fn acquire(&mut self, leases: &[Lease]) -> bool {
        // A batch from before they were lost may still be under way: a key is in one at a time. The
        // next heartbeat takes them over.
        let busy = self.batches.buckets().without(&self.reading.owned);
        let unavailable = self.leases.given_back().union(&busy);
        let mut gained = BucketSet::EMPTY;
        let mut low_water = Position::END;
        for lease in leases {
            // A bucket under the epoch under which it was given up is being released: this
            // heartbeat ran before the release.
            let is_released = self.leases.epoch(lease.bucket) == lease.epoch;
            if !self.reading.owned.contains(lease.bucket)
                && (sabotaged!(self, GivenUpIsTaken) || (!unavailable.contains(lease.bucket) && !is_released))
            {
                gained.insert(lease.bucket);
                low_water = low_water.min(lease.low_water);
                self.leases.epochs[usize::from(lease.bucket.0)] = lease.epoch;
            }
        }
        if gained.is_empty() {
            return false;
        }
        self.report(Report::TookOver(gained.len()));
        if sabotaged!(self, TakeoverAtCursor) {
            low_water = low_water.max(self.reading.main_cursor());
        }
        self.reading.acquire(gained, low_water);
        // A saved mark is a hint, so the range below it is checked at once.
        self.below.look_at(Duration::ZERO);
        // The buckets may have failing keys.
        self.due.ask();
        true
    }

    fn pause(&mut self, paused: &Paused, asked: Duration) {
        self.leases.is_route_paused = paused.route;
        for topic in self.topics.pause(&paused.topics, asked) {
            self.close_topic(&topic);
            self.report_topics();
        }
    }

    /// Drops buckets that this relay lost, or seems to have lost: in that case the next heartbeat
    /// takes them over again.
    pub(super) fn lose_lease(&mut self, buckets: BucketSet) {
        self.lose(buckets.intersection(&self.reading.owned));
        let giving_back = self.leases.given_back();
        for bucket in buckets.without(&giving_back).iter() {
            self.leases.epochs[usize::from(bucket.0)] = Epoch::default();
        }
    }

    /// Handles a publisher's report of lost buckets. The report may be outdated, so buckets that
    /// were read under other epochs stay.
    pub(super) fn lapsed(&mut self, epochs: &BTreeMap<Bucket, Epoch>) {
        let lapsed = epochs.iter().filter(|(bucket, epoch)| self.leases.epoch(**bucket) == **epoch);
        let lapsed: BucketSet = lapsed.map(|(bucket, _)| *bucket).collect();
        self.lose_lease(lapsed.intersection(&self.reading.owned));
    }

    fn give_up(&mut self, buckets: BucketSet) {
        let low_water = self.reading.low_water(&self.table);
        if !sabotaged!(self, GivesUpAndGoesOn) {
            self.lose(buckets);
        }
        self.leases.giving_back.push(GivingBack { buckets, low_water });
    }

    /// Releases given-up buckets with nothing unconfirmed or unsettled.
    pub(super) fn finish_giving_back(&mut self) {
        let waiting = std::mem::take(&mut self.leases.giving_back);
        for given in waiting {
            let goes_unconfirmed = sabotaged!(self, GivesBackUnconfirmed);
            let is_quiet = self.batches.is_quiet(&given.buckets) || goes_unconfirmed;
            let goes_unsettled = sabotaged!(self, GivesBackUnsettled);
            let is_settled = self.removals.is_settled(&given.buckets) || goes_unconfirmed || goes_unsettled;
            if is_quiet && is_settled {
                let low_water = self.leases.mark(given.buckets, given.low_water);
                self.commands.push(Command::GiveBack { buckets: given.buckets, low_water });
            } else {
                self.leases.giving_back.push(given);
            }
        }
        if let Some(drain) = &mut self.draining
            && !drain.is_said
            && self.batches.is_quiet(&BucketSet::ALL)
        {
            drain.is_said = true;
            self.commands.push(Command::Drained(drain.low_water.clone()));
        }
    }

    /// Returns the low-water mark of everything that this relay reads, including buckets that it is
    /// giving up: it still owns those. The mark covers only leases that this core knows of, as the
    /// keeper may own other buckets by now.
    fn low_water(&self) -> LowWater {
        let given =
            self.leases.giving_back.iter().map(|given| given.low_water).min().unwrap_or(Position::END);
        let covered = self.reading.owned.union(&self.leases.given_back());
        let mut position = self.reading.low_water(&self.table).min(given);
        if sabotaged!(self, MarkPassesInFlight) {
            position = self.reading.low_water_of_windows();
        }
        if sabotaged!(self, MarkIgnoresGivenUp) {
            position = self.reading.low_water(&self.table);
        }
        if sabotaged!(self, MarkIgnoresKeyWindows) {
            let in_flight = self.table.lowest_row().map_or(Position::END, Position::before);
            position = self.reading.low_water_of_windows().min(in_flight).min(given);
        }
        self.leases.mark(covered, position)
    }

    /// Starts nothing new. Dropped messages remain to be read by other relays, so the mark stays
    /// below them.
    pub(super) fn drain(&mut self) {
        if self.draining.is_some() {
            return;
        }
        let mut low_water = self.low_water();
        let owned = self.reading.owned;
        self.asked = None;
        self.lose(owned);
        if sabotaged!(self, MarkOfDrainLate) {
            low_water.position = self.reading.low_water(&self.table);
        }
        self.draining = Some(Drain { low_water, is_said: false });
    }
}
