//! The checker itself, on synthetic graphs: a valid one, and one for each kind of violation.

use super::*;

struct House(Graph);

/// A graph without violations.
fn house() -> House {
    let mut house = House(Graph::default());
    let rooms = [
        ("outbox/contract", "outbox-contract"),
        ("outbox/derive", "outbox-derive"),
        ("outbox/engine", "outbox-engine"),
        ("outbox/testkit", "outbox-testkit"),
        ("stores/memory", "outbox-store-memory"),
        ("stores/sqlite", "outbox-store-sqlite"),
        ("transports/memory", "outbox-transport-memory"),
        ("transports/kafka", "outbox-transport-kafka"),
        ("outbox", "outbox"),
        ("outbox/cli", "outbox-cli"),
        ("outbox/dashboard", "outbox-dashboard"),
        ("examples/orders", "orders"),
        ("tests", "outbox-tests"),
    ];
    for (folder, name) in rooms {
        house = house.with_crate(folder, name);
    }
    house
        .arrow("outbox-contract", "tokio")
        .dev("outbox-derive", "outbox-contract")
        .arrow("outbox-engine", "outbox-contract")
        .arrow("outbox-engine", "ractor")
        .dev("outbox-engine", "outbox-store-memory")
        .arrow("outbox-testkit", "outbox-contract")
        .arrow("outbox-store-memory", "outbox-contract")
        .dev("outbox-store-memory", "outbox-testkit")
        .arrow("outbox-store-sqlite", "outbox-contract")
        .arrow("outbox-store-sqlite", "sqlx")
        .arrow("outbox-transport-kafka", "rdkafka")
        .arrow("outbox", "outbox-engine")
        .arrow("outbox", "outbox-store-memory")
        .optional("outbox", "outbox-store-sqlite")
        .optional("outbox", "outbox-transport-kafka")
        .arrow("outbox-cli", "outbox-dashboard")
        .arrow("orders", "outbox")
        .arrow("outbox-tests", "outbox-engine")
}

impl House {
    fn with_crate(mut self, folder: &str, name: &str) -> Self {
        self.0.crates.push(Crate {
            name: name.to_owned(),
            folder: folder.to_owned(),
            dependencies: Vec::new(),
            on_by_default: Default::default(),
        });
        self
    }

    fn named(&mut self, name: &str) -> &mut Crate {
        self.0.crates.iter_mut().find(|subject| subject.name == name).expect("a crate of the house")
    }

    fn add(mut self, from: &str, to: &str, dev: bool, optional: bool) -> Self {
        let dependency = Dependency { name: to.to_owned(), dev, optional, features: Vec::new() };
        self.named(from).dependencies.push(dependency);
        if dev { self } else { self.built_from(from, to) }
    }

    fn arrow(self, from: &str, to: &str) -> Self {
        self.add(from, to, false, false)
    }

    fn dev(self, from: &str, to: &str) -> Self {
        self.add(from, to, true, false)
    }

    fn optional(self, from: &str, to: &str) -> Self {
        self.add(from, to, false, true)
    }

    fn built_from(mut self, from: &str, to: &str) -> Self {
        self.0.built_from.entry(from.to_owned()).or_default().insert(to.to_owned());
        self
    }

    #[track_caller]
    fn has(&self, expected: &[&str]) {
        assert_eq!(problems(&self.0), expected);
    }

    #[track_caller]
    fn has_one_that_begins(&self, start: &str) {
        let problems = problems(&self.0);
        assert!(problems.iter().any(|problem| problem.starts_with(start)), "{problems:?}");
    }
}

#[test]
fn a_house_in_order_has_no_problems() {
    house().has(&[]);
}

#[test]
fn every_arrow_that_points_the_wrong_way_is_found() {
    let wrong = [
        ("outbox-contract", "outbox-engine"),
        ("outbox-contract", "outbox-derive"),
        ("outbox-contract", "outbox-store-memory"),
        ("outbox-derive", "outbox-contract"),
        ("outbox-engine", "outbox"),
        ("outbox-engine", "outbox-derive"),
        ("outbox-engine", "outbox-testkit"),
        ("outbox-engine", "outbox-store-memory"),
        ("outbox-engine", "outbox-transport-memory"),
        ("outbox-testkit", "outbox-engine"),
        ("outbox-testkit", "outbox-store-sqlite"),
        ("outbox-testkit", "outbox-store-memory"),
        ("outbox-store-sqlite", "outbox-engine"),
        ("outbox-store-sqlite", "outbox-testkit"),
        ("outbox-store-sqlite", "outbox-store-memory"),
        ("outbox-store-memory", "outbox-transport-memory"),
        ("outbox-transport-memory", "outbox-store-memory"),
        ("outbox-transport-memory", "outbox-engine"),
        ("outbox", "outbox-cli"),
        ("outbox", "orders"),
        ("outbox-dashboard", "outbox-cli"),
        ("outbox-dashboard", "outbox-store-memory"),
        ("outbox-cli", "outbox-engine"),
        ("outbox-cli", "outbox-tests"),
        ("orders", "outbox-contract"),
        ("orders", "outbox-engine"),
    ];
    for (from, to) in wrong {
        house().arrow(from, to).has_one_that_begins(&format!("{from} depends on {to}; it may depend on: "));
    }
}

#[test]
fn tests_may_not_name_more_than_the_table_says() {
    let wrong = [
        ("outbox-contract", "outbox-testkit"),
        ("outbox-engine", "outbox-store-sqlite"),
        ("outbox-testkit", "outbox-store-sqlite"),
        ("outbox-store-sqlite", "outbox-engine"),
        ("outbox-store-sqlite", "outbox-transport-memory"),
        ("outbox-transport-kafka", "outbox-store-memory"),
    ];
    for (from, to) in wrong {
        house().dev(from, to).has_one_that_begins(&format!("{from} depends on {to} in its tests"));
    }
}

#[test]
fn a_problem_says_what_would_be_allowed() {
    house().dev("outbox-store-sqlite", "outbox-engine").has(&[
        "outbox-store-sqlite depends on outbox-engine in its tests; it may depend on: outbox-contract (all that a store knows), \
         outbox-store-sql (the common parts of SQL stores), outbox-testkit in its tests (it runs the store suite), outbox-servers in its tests (its tests run against real servers)",
    ]);
    house()
        .arrow("outbox-contract", "outbox-derive")
        .has(&["outbox-contract depends on outbox-derive; it may depend on: nothing of ours"]);
}

#[test]
fn the_facade_has_backends_with_drivers_only_behind_features_that_are_off() {
    house()
        .arrow("outbox", "outbox-store-sqlite")
        .has_one_that_begins("outbox depends on outbox-store-sqlite");
    for switched in ["dep:outbox-store-sqlite", "outbox-store-sqlite"] {
        let mut house = house();
        house.named("outbox").on_by_default.insert(switched.to_owned());
        house.has_one_that_begins("outbox depends on outbox-store-sqlite by a feature");
    }
}

#[test]
fn only_the_engine_names_ractor_even_in_tests() {
    house()
        .dev("outbox-store-memory", "ractor")
        .has(&["outbox-store-memory names ractor: the actor runtime is the engine's own business"]);
    house().dev("outbox-tests", "ractor_cluster").has_one_that_begins("outbox-tests names ractor_cluster");
}

#[test]
fn a_driver_is_found_at_any_depth() {
    house().built_from("tokio", "pool").built_from("pool", "sqlx-core").has(&[
        "outbox-contract is built from sqlx-core: drivers of databases stay in the stores",
        "outbox-engine is built from sqlx-core: drivers of databases stay in the stores",
        "outbox-testkit is built from sqlx-core: drivers of databases stay in the stores",
        "outbox-store-memory is built from sqlx-core: drivers of databases stay in the stores",
    ]);
    house().arrow("outbox-engine", "lapin").has(&[
        "outbox-engine names lapin: clients of brokers stay in the transports",
        "outbox-engine is built from lapin: clients of brokers stay in the transports",
    ]);
}

#[test]
fn the_contract_asks_for_no_runtime() {
    let mut house = house();
    house.named("outbox-contract").dependencies[0].features = vec!["sync".to_owned(), "rt".to_owned()];
    house.has(&["outbox-contract asks tokio for \"rt\": the contract starts no task and opens nothing"]);
}

#[test]
fn a_crate_is_called_after_its_folder() {
    house()
        .with_crate("stores/redis", "outbox-store-valkey")
        .has(&["outbox-store-valkey in stores/redis/ has no place in ROOMS: move or rename it"]);
    house().with_crate("outbox/core", "outbox-core").has_one_that_begins("outbox-core in outbox/core/");
    house().with_crate("stores/a/b", "outbox-store-a/b").has_one_that_begins("outbox-store-a/b");
}

#[test]
fn a_row_that_no_crate_needs_is_named() {
    let told = unused(&house().0).join("\n");
    assert!(told.contains("no crate needs outbox-cli -> outbox (it stands where users stand)"), "{told}");
    for needed in ["outbox-cli -> outbox-dashboard", "outbox-tests -> outbox*"] {
        assert!(!told.contains(needed), "{told}");
    }
}
