//! What a relay costs that has nothing to do.

use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::child::{Child, Role};
use crate::ours::Ours;
use crate::report::Table;

pub(crate) fn run(bench: &mut Bench) {
    let (calm, seconds) = bench.profile.pick((5, 15), (15, 120));
    bench.say(format!("idle: {seconds} s"));
    let (store, broker) = (bench.store(), bench.vhost());
    // The servers' own, without a relay.
    let bare = used(bench, &store, seconds, None);
    let ours = Ours { store: store.clone(), broker: Some(broker), tuned: false, messages: 0 };
    let mut relay = Child::start(&Role::Ours(ours));
    relay.go();
    std::thread::sleep(Duration::from_secs(calm));
    let idle = used(bench, &store, seconds, Some(&relay));
    let columns = ["transactions/s", "own ms/s", "database ms/s", "broker ms/s"];
    let about = format!("each statement is a transaction of its own; processor time per second of {seconds}");
    let mut table = Table::new("idle", about, &columns);
    table.row("servers alone", bare.map(Some));
    table.row("with a relay", idle.map(Some));
    bench.report(table);
}

fn used(bench: &Bench, store: &str, seconds: u64, relay: Option<&Child>) -> [f64; 4] {
    let name = store.rsplit('/').next().unwrap_or_default();
    // Asked through another database, so that the question does not count.
    let sql = format!("select xact_commit + xact_rollback from pg_stat_database where datname = '{name}'");
    let figures = || {
        let transactions = bench.number(&bench.postgres.url(), &sql);
        let own = relay.map(Child::cpu).unwrap_or_default();
        let cpu = [own, bench.postgres.usage().cpu, bench.broker.usage().cpu];
        (transactions, cpu.map(|time| time.as_secs_f64() * 1e3))
    };
    let (before, started) = (figures(), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let (after, took) = (figures(), started.elapsed().as_secs_f64());
    let each = |figure: usize| (after.1[figure] - before.1[figure]) / took;
    [(after.0 - before.0) / took, each(0), each(1), each(2)]
}
