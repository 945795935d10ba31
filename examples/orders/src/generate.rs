//! Generates orders: any number, the same for the same seed, one at a time.

use crate::input::{Item, Step, total};

/// Orders of customers, step by step, as `orders --orders N --customers M --seed S` reads them.
///
/// Orders overlap: while one waits for payment, others are placed, also by the same customer. Some
/// customers order much more than others: of 10,000 the busiest one places about one order in a
/// hundred.
#[derive(Debug)]
pub(crate) struct Generator {
    random: fastrand::Rng,
    orders: u64,
    placed: u64,
    customers: u64,
    open: Vec<Open>,
}

/// An unfinished order.
#[derive(Debug)]
struct Open {
    order_id: String,
    customer: String,
    cents: u64,
    plan: &'static [Next],
}

/// A step of an order after it was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Pay,
    Ship,
    Cancel,
}

impl Generator {
    /// Maximum number of orders open at once, which bounds the memory.
    const MAX_OPEN: usize = 64;

    /// Creates a generator of this many orders of this many customers (at least one).
    #[must_use]
    pub(crate) fn new(orders: u64, customers: u64, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { random, orders, placed: 0, customers: customers.max(1), open: Vec::new() }
    }

    fn place(&mut self) -> Step {
        self.placed += 1;
        let order_id = format!("o-{:07}", self.placed);
        let customer = format!("c-{:05}", self.customer());
        let items: Vec<Item> = (0..self.random.usize(1..=4)).map(|_| self.item()).collect();
        // Most orders are paid and shipped, some are canceled before or after payment, some are
        // never paid.
        let plan: &[Next] = match self.random.u8(0..100) {
            0..70 => &[Next::Pay, Next::Ship],
            70..80 => &[Next::Cancel],
            80..88 => &[Next::Pay, Next::Cancel],
            _ => &[],
        };
        if !plan.is_empty() {
            let (order_id, customer) = (order_id.clone(), customer.clone());
            self.open.push(Open { order_id, customer, cents: total(&items), plan });
        }
        Step::Place { order_id, customer, items }
    }

    /// Draws a customer, from 1: the square of a uniform draw, so that low numbers are frequent.
    fn customer(&mut self) -> u64 {
        const FINE: u64 = 1 << 20;
        let draw = self.random.u64(0..FINE);
        1 + u64::try_from(u128::from(self.customers) * u128::from(draw * draw) / u128::from(FINE * FINE))
            .unwrap_or_default()
    }

    fn item(&mut self) -> Item {
        const GOODS: &[(&str, u32)] = &[
            ("tea-assam", 690),
            ("tea-sencha", 1_150),
            ("coffee-harrar", 1_390),
            ("cup-stoneware", 1_800),
            ("pot-cast-iron", 6_400),
            ("filter-paper", 350),
            ("honey-linden", 890),
            ("kettle-gooseneck", 7_900),
        ];
        let (sku, cents) = GOODS[self.random.usize(0..GOODS.len())];
        Item { sku: sku.to_owned(), quantity: self.random.u32(1..=3), cents }
    }

    /// Returns the next step of an open order, and closes the order after its last step.
    fn go_on(&mut self, which: usize) -> Step {
        const REASONS: &[&str] = &["changed my mind", "found it cheaper", "ordered twice", "takes too long"];
        let Open { order_id, customer, cents, plan } = &mut self.open[which];
        let (next, rest) = plan.split_first().expect("an open order has something left to happen");
        let (order_id, customer, cents) = (order_id.clone(), customer.clone(), *cents);
        *plan = rest;
        if plan.is_empty() {
            self.open.swap_remove(which);
        }
        match next {
            Next::Pay => Step::Pay { order_id, customer, cents },
            Next::Ship => {
                let parcel = format!("PX-{:06}", self.random.u32(0..1_000_000));
                Step::Ship { order_id, customer, parcel }
            }
            Next::Cancel => {
                let reason = REASONS[self.random.usize(0..REASONS.len())].to_owned();
                Step::Cancel { order_id, customer, reason }
            }
        }
    }
}

impl Iterator for Generator {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let may_place = self.placed < self.orders && self.open.len() < Self::MAX_OPEN;
        // Fewer than two steps follow an order on average: placing two times in five keeps orders
        // open all the time.
        if may_place && (self.open.is_empty() || self.random.u8(0..5) < 2) {
            return Some(self.place());
        }
        if self.open.is_empty() {
            return None;
        }
        let which = self.random.usize(0..self.open.len());
        Some(self.go_on(which))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_orders_and_another_seed_others() {
        let make = |seed| Generator::new(200, 20, seed).collect::<Vec<_>>();
        assert_eq!(make(7), make(7));
        assert_ne!(make(7), make(8));
    }

    #[test]
    fn there_are_as_many_orders_and_customers_as_asked_for() {
        for (orders, customers) in [(0, 5), (1, 1), (1_000, 1), (3_000, 30), (5, 0)] {
            let placed: Vec<Step> = Generator::new(orders, customers, 1)
                .filter(|step| matches!(step, Step::Place { .. }))
                .collect();
            assert_eq!(placed.len() as u64, orders);
            let seen: BTreeSet<&str> = placed.iter().map(Step::customer).collect();
            assert!(seen.len() as u64 <= customers.max(1));
            assert!(orders < 100 * customers || seen.len() as u64 == customers.max(1), "{}", seen.len());
        }
    }

    #[test]
    fn an_order_goes_its_way_step_by_step_and_others_go_on_meanwhile() {
        let mut ways: BTreeMap<String, Vec<Step>> = BTreeMap::new();
        let mut overlapping = 0;
        let mut last = String::new();
        for step in Generator::new(2_000, 50, 3) {
            overlapping += u32::from(last != step.order_id());
            step.order_id().clone_into(&mut last);
            ways.entry(last.clone()).or_default().push(step);
        }
        assert!(overlapping > 2_000, "orders must overlap: {overlapping}");
        for (order, way) in &ways {
            assert!(way.iter().all(|step| step.customer() == way[0].customer()), "{order} changes hands");
            match way.as_slice() {
                [Step::Place { .. }] | [Step::Place { .. }, Step::Cancel { .. }] => {}
                [
                    Step::Place { items, .. },
                    Step::Pay { cents, .. },
                    Step::Ship { .. } | Step::Cancel { .. },
                ] => {
                    assert_eq!(*cents, total(items), "{order} is paid as it costs");
                }
                other => panic!("{order} goes an impossible way: {other:?}"),
            }
        }
    }

    #[test]
    fn no_more_orders_are_open_than_allowed() {
        let mut generator = Generator::new(20_000, 10, 5);
        let mut most = 0;
        while generator.next().is_some() {
            most = most.max(generator.open.len());
        }
        assert!((2..=Generator::MAX_OPEN).contains(&most), "{most}");
    }
}
