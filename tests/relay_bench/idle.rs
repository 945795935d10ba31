//! What a relay costs that has nothing to do.

use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::child::{Child, Role};
use crate::ours::Ours;
use crate::report::Table;
use crate::stats::median;

pub(crate) fn run(bench: &mut Bench) {
    let (calm, seconds, samples) = bench.profile.pick((5, 15, 1), (15, 60, 5));
    bench.say(format!("idle: {samples} times {seconds} s, twice"));
    let (store, broker) = (bench.store(), bench.broker.fresh());
    // The servers' own, without a relay.
    let bare = sampled(bench, &store, seconds, samples, None);
    let ours = Ours { store: store.clone(), broker: Some(broker), settings: vec![], messages: 0 };
    let mut relay = Child::start(&Role::Ours(ours));
    relay.go();
    std::thread::sleep(Duration::from_secs(calm));
    let idle = sampled(bench, &store, seconds, samples, Some(&relay));
    let columns = ["transactions/s", "own ms/s", "database ms/s", "broker ms/s"];
    let about = format!(
        "each statement is a transaction of its own; processor time per second; medians of {samples} samples of {seconds} s"
    );
    let mut table = Table::new("idle", about, &columns);
    table.row("servers alone", bare);
    table.row("with a relay", idle);
    bench.report(table);
}

fn sampled(
    bench: &Bench,
    store: &str,
    seconds: u64,
    samples: usize,
    relay: Option<&Child>,
) -> [Option<f64>; 4] {
    let all: Vec<[f64; 4]> = (0..samples).map(|_| used(bench, store, seconds, relay)).collect();
    std::array::from_fn(|figure| median(&all.iter().map(|sample| sample[figure]).collect::<Vec<_>>()))
}

fn used(bench: &Bench, store: &str, seconds: u64, relay: Option<&Child>) -> [f64; 4] {
    let name = store.rsplit('/').next().unwrap_or_default();
    // Asked through another database, so that the question does not count.
    let sql = format!("select xact_commit + xact_rollback from pg_stat_database where datname = '{name}'");
    let figures = || {
        let transactions = bench.number(&bench.postgres().url(), &sql);
        let own = relay.map(Child::cpu).unwrap_or_default();
        let cpu = [own, bench.postgres().usage().cpu, bench.broker.cpu()];
        (transactions, cpu.map(|time| time.as_secs_f64() * 1e3))
    };
    let (before, started) = (figures(), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let (after, took) = (figures(), started.elapsed().as_secs_f64());
    let each = |figure: usize| (after.1[figure] - before.1[figure]) / took;
    [(after.0 - before.0) / took, each(0), each(1), each(2)]
}
