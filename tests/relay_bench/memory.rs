//! Resident memory of a relay at a large backlog, of many keys and of one.

use crate::bench::{Bench, KEYS, TOPIC};
use crate::child::Child;
use crate::ours::Ours;
use crate::report::Table;
use crate::role::Role;
use crate::throughput::measure;

pub(crate) fn run(bench: &mut Bench) {
    let messages = bench.profile.pick(40_000, 500_000);
    let about = format!("{}: the most resident memory while {messages} messages are relayed", bench.pair);
    let mut table = Table::new("memory", about, &["MiB", "messages/s"]);
    // One key is as fast as a batch's way to the broker and back: a part of the messages has to do.
    for (label, messages, keys) in [("10,000 keys", messages, KEYS), ("one key", messages / 4, 1)] {
        bench.say(format!("memory: {label}"));
        let (store, broker) = (bench.store(), bench.broker.fresh());
        bench.fill(&store, TOPIC, messages, keys);
        let role = Role::Ours(Ours { store, broker: Some(broker), settings: vec![], messages });
        let used = measure(bench, Child::start(&role));
        table.row(label, [Some(used.memory), Some(used.rate)]);
    }
    bench.report(table);
}
