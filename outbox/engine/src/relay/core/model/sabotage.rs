//! Plausible mistakes: parts of the core, or of what it rests on, that are left out. The model must
//! find each of them.

use outbox_contract::backend::Ordering;

macro_rules! sabotages {
    ($($name:ident $(on $ordering:ident)? : $words:literal,)*) => {
        /// A mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Sabotage {
            $(#[doc = $words] $name,)*
        }

        impl Sabotage {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The mistake in words.
            #[must_use]
            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }

            /// The only ordering under which it can do harm, if there is one.
            #[must_use]
            #[allow(unused_mut, unused_assignments, reason = "most do harm under each")]
            pub fn ordering(self) -> Option<Ordering> {
                match self {
                    $(Self::$name => {
                        let mut ordering = None;
                        $(ordering = Some(Ordering::$ordering);)?
                        ordering
                    })*
                }
            }
        }
    };
}

sabotages! {
    // Reading: windows, horizons, marks.
    LapseCounts: "a fetch over expired leases counts",
    FetchFence: "the answer of a fetch counts, whatever happened meanwhile",
    UselessFetchCounts: "a fetch whose answer was of no use is not made again",
    RowsAboveMarks on Stripes: "rows count that were committed after the marks were read",
    WindowsOverlap: "a key with a window of its own is read through the main one too",
    TransitionsForgotten: "a fetch that began before a transition was answered counts for its key",
    ContradictionTaken: "a message of a key with rows to park is taken",
    KeyWindowEndsEarly: "the window of a key ends with its first fetch",
    GapEndsEarly: "the window of a topic or of buckets ends with its first fetch",
    NotReadAgain: "what is dropped from memory is not read again",
    HotKeyPassed: "a key with too much in memory is passed, and gets no window of its own",
    FailingKeyPassed: "rows to park for which there is no room are passed and forgotten",
    PassedForgotten on Writers: "rows of narrower windows are shown again and again above the horizon",
    PlainCursorOfWriters on Writers: "a plain cursor is enough for several writers",
    PlainCursorOfShards on Stripes: "a plain cursor is enough for sequence shards",
    HorizonAtOnce on Writers: "a horizon counts at once",
    HorizonOfCutFetch on Writers: "a fetch that was cut short lifts the horizon beyond its last row",
    LastReadLast on Writers: "the last position is read after the writers, not before",
    CursorPassesLateCommits on Writers: "the cursor passes late commits",
    BaseNotConfirmed on Writers: "what is read from a base counts without a look at the writers",
    BaseAtOnce on Writers: "a claim makes a base at once",
    BaseOfCutFetch on Writers: "a fetch that was cut short lifts the base beyond its last row",
    GapAtBase on Writers: "a topic that is closed takes a base for its horizon",
    NewsIgnored on Stripes: "a fetch begins at the cursor, whatever was committed below it",
    MarksReadLast on Stripes: "the marks are read when the fetch has returned",
    LastAppendOnly on Stripes: "what was committed is taken for the last append alone",
    CursorOfCutFetch on Stripes: "a fetch that was cut short leaves the cursor where it was",
    TakeoverAtLowest on Stripes: "a bucket that is taken over counts as seen below its lowest row",
    GapAtMain on Stripes: "a topic that is closed has seen what the main window has",
    BelowWithoutMarks on Stripes: "a look below believes that nothing was committed meanwhile",
    OnlyMainWaits on Stripes: "rows of a shard whose counter went back wait in the main window alone",
    NeverLooksBelow: "no check looks below what was read",
    // Sending, and the outcomes.
    UnknownIsDelivered: "an unknown outcome counts as delivered",
    BlockedIsDelivered: "a message that was blocked counts as delivered",
    PartIsWhole: "of messages of a key of which some are confirmed all count as confirmed",
    FollowersGoOn: "what follows a message that stopped is sent before it",
    OutageCounts: "an outage counts as a failure of the message",
    BlockedCounts: "a message that was blocked counts as failed",
    SilenceCounts: "a message of which nothing was heard counts as failed",
    PostponedCounts: "a message that was postponed counts as failed",
    StaysMixed: "a batch of an earlier stay of a key counts as one of this stay",
    RemovesWhatStopped: "a message that stopped is removed with those before it",
    SettlesWithoutId: "the store removes by position alone",
    PublishesWithoutLease: "batches are begun when the leases are over",
    PauseIgnored: "a route that is paused goes on",
    RestForever: "a key that waits is not woken",
    // Failing keys.
    RetryOvertakes: "a key that is due is taken while earlier messages of it are in memory",
    DeadLetterUnblocksEarly: "followers go on when a dead letter is asked for",
    StaleIsDone: "a transition that the store refused as stale counts as made",
    ResumeTakesNext: "the next parked message is removed with those that were delivered",
    RetryLostOnPause: "a retry that is dropped when its topic closes is not due again",
    ReleaseUnseen: "keys that an operator released are not asked for",
    HeldIsDue: "the store says that a held key is due",
    // Topics.
    NeverPausesTopic: "a topic that the policy pauses is not paused",
    PausedTopicGoesOn: "a topic that the policy pauses goes on until a heartbeat tells of it",
    ForgetFlagLost: "a batch that is out when its topic closes goes on when it is back",
    TopicStaysClosed: "a broken topic is not tried again",
    CloseForgetsWindows: "a topic that closes forgets where the windows of its keys were",
    ClosedTopicForgets: "what is dropped while its topic is closed is not read when it opens",
    // Leases and marks.
    GivesBackUnconfirmed: "buckets are given back while a batch with them is out",
    GivesBackUnsettled: "buckets are given back while delivered rows of them are not removed",
    GivesUpAndGoesOn: "what is given up is not dropped from memory",
    GivenUpIsTaken: "a heartbeat takes buckets again that are on their way back",
    TakeoverAtCursor: "a bucket that is taken over is read from the cursor of the main window on",
    MarkPassesInFlight: "the mark that is saved does not look at what is in flight",
    MarkBeforeGone: "the mark that is saved passes rows that are delivered and not removed",
    MarkIgnoresKeyWindows: "the mark that is saved does not look at windows of keys",
    MarkIgnoresGivenUp: "the mark that is saved does not look at buckets that are being given up",
    MarkOfDrainLate: "the mark of a drain is taken when everything was dropped",
    MarkCoversAll: "the store takes a mark for all buckets of a relay, whatever it covers",
    LifeIgnored: "the store takes marks of an earlier life",
    // The budget of what is in flight.
    CreditLeaks: "rows that are gone keep their share of the budget",
    LostKeysKeepCredit: "keys that are lost keep their share of the budget",
    OwedForgotten: "what an earlier incarnation delivered has no share of the budget",
    BudgetIgnored: "a fetch asks for more than there is room for",
    WaitingLeaks: "rows that were parked count as waiting for it",
}

impl Sabotage {
    /// The mistake of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|sabotage| sabotage.name().eq_ignore_ascii_case(name))
    }
}
