//! Input of `orders`: one line of JSON for each step of an order; and a generator of such lines.
//!
//! ```text
//! {"kind":"place","order_id":"o-0001","customer":"c-ada","items":[{"sku":"tea-assam","quantity":2,"cents":690}]}
//! {"kind":"pay","order_id":"o-0001","customer":"c-ada","cents":1380}
//! {"kind":"ship","order_id":"o-0001","customer":"c-ada","parcel":"PX-48213"}
//! ```
//!
//! An invalid line is reported with its number, and reading continues with the next one. Both
//! directions are streams: however many orders there are, only one line and a few open orders are
//! in memory.

use std::fmt;
use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};

/// A step of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Step {
    /// A customer orders.
    Place {
        /// The order.
        order_id: String,
        /// The customer.
        customer: String,
        /// Ordered items; at least one.
        items: Vec<Item>,
    },
    /// The customer pays.
    Pay {
        /// The order.
        order_id: String,
        /// The customer.
        customer: String,
        /// The amount.
        cents: u64,
    },
    /// The goods leave.
    Ship {
        /// The order.
        order_id: String,
        /// The customer.
        customer: String,
        /// The carrier's name for the parcel.
        parcel: String,
    },
    /// The order is canceled.
    Cancel {
        /// The order.
        order_id: String,
        /// The customer.
        customer: String,
        /// The reason.
        reason: String,
    },
}

/// One line of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    /// The article.
    pub(crate) sku: String,
    /// Number of pieces, from 1.
    pub(crate) quantity: u32,
    /// Price of one piece.
    pub(crate) cents: u32,
}

impl Step {
    /// Returns the order to which this step belongs.
    #[must_use]
    pub(crate) fn order_id(&self) -> &str {
        match self {
            Self::Place { order_id, .. }
            | Self::Pay { order_id, .. }
            | Self::Ship { order_id, .. }
            | Self::Cancel { order_id, .. } => order_id,
        }
    }

    /// Returns the customer of the order.
    #[must_use]
    pub(crate) fn customer(&self) -> &str {
        match self {
            Self::Place { customer, .. }
            | Self::Pay { customer, .. }
            | Self::Ship { customer, .. }
            | Self::Cancel { customer, .. } => customer,
        }
    }

    /// Checks the rules that the types do not enforce: at least one item, and valid names.
    fn check(self) -> Result<Self, String> {
        if self.order_id().is_empty() {
            return Err("its order_id is empty".to_owned());
        }
        if self.customer().is_empty() {
            return Err("its customer is empty".to_owned());
        }
        if let Self::Place { items, .. } = &self {
            if items.is_empty() {
                return Err("it has no items".to_owned());
            }
            if let Some(item) = items.iter().find(|item| item.quantity == 0) {
                return Err(format!("it orders {:?} 0 times", item.sku));
            }
        }
        Ok(self)
    }
}

/// Returns the total price of the items.
#[must_use]
pub(crate) fn total(items: &[Item]) -> u64 {
    // A product of two 32-bit factors fits; a sum of billions of such products would not, but a
    // line has no room for them.
    items.iter().map(|item| u64::from(item.quantity) * u64::from(item.cents)).fold(0, u64::saturating_add)
}

/// Steps of a file or of standard input, with their line numbers. Empty lines are skipped.
#[derive(Debug)]
pub(crate) struct Steps<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    ended: bool,
}

impl<R: BufRead> Steps<R> {
    /// Maximum size of a line, in bytes: a file without line ends must not fill the memory.
    pub(crate) const MAX_BYTES: usize = 64 * 1024;

    /// Creates a reader that starts at the beginning.
    pub(crate) fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0, ended: false }
    }

    /// Reads the next line, and keeps no more of it than the maximum. Returns false at the end.
    fn read_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        let most = Self::MAX_BYTES as u64 + 1;
        self.input.by_ref().take(most).read_until(b'\n', &mut self.line)?;
        if self.line.len() > Self::MAX_BYTES && !self.line.ends_with(b"\n") {
            self.input.skip_until(b'\n')?;
        }
        Ok(!self.line.is_empty())
    }

    fn parse(&self) -> Result<Step, String> {
        if self.line.trim_ascii_end().len() > Self::MAX_BYTES {
            return Err(format!("it is longer than {} bytes", Self::MAX_BYTES));
        }
        serde_json::from_slice::<Step>(&self.line).map_err(|error| error.to_string())?.check()
    }
}

impl<R: BufRead> Iterator for Steps<R> {
    type Item = Result<(u64, Step), InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.read_line() {
                Ok(true) => self.number += 1,
                Ok(false) => break,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(InputError::Unreadable { after: self.number, error }));
                }
            }
            if !self.line.trim_ascii().is_empty() {
                let step = self.parse().map(|step| (self.number, step));
                return Some(step.map_err(|why| InputError::not_an_order(self.number, why, &self.line)));
            }
        }
        None
    }
}

/// Error of the input.
#[derive(Debug)]
pub(crate) enum InputError {
    /// One line is not an order. The next one may be.
    NotAnOrder {
        /// Number of the line, from 1.
        number: u64,
        /// Fault of the line.
        why: String,
        /// Beginning of the line.
        begins: String,
    },
    /// The input can't be read any further.
    Unreadable {
        /// Number of the last line read.
        after: u64,
        /// The cause.
        error: io::Error,
    },
}

impl InputError {
    fn not_an_order(number: u64, why: String, line: &[u8]) -> Self {
        const SHOWN: usize = 60;
        let text = String::from_utf8_lossy(&line[..line.len().min(4 * SHOWN)]);
        let text = text.trim();
        let mut begins: String = text.chars().take(SHOWN).collect();
        if begins.len() < text.len() {
            begins.push('…');
        }
        Self::NotAnOrder { number, why, begins }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnOrder { number, why, begins } => {
                write!(f, "line {number} is not an order: {why}; it begins {begins:?}")
            }
            Self::Unreadable { after, error } => write!(f, "could not read past line {after}: {error}"),
        }
    }
}

impl std::error::Error for InputError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotAnOrder { .. } => None,
            Self::Unreadable { error, .. } => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn read(text: &str) -> Vec<Result<(u64, Step), String>> {
        Steps::new(text.as_bytes()).map(|step| step.map_err(|error| error.to_string())).collect()
    }

    fn cancel(order_id: &str) -> Step {
        Step::Cancel { order_id: order_id.to_owned(), customer: "c-1".to_owned(), reason: "late".to_owned() }
    }

    const CANCEL_1: &str = r#"{"kind":"cancel","order_id":"o-1","customer":"c-1","reason":"late"}"#;
    const CANCEL_2: &str = r#"{"kind":"cancel","order_id":"o-2","customer":"c-1","reason":"late"}"#;

    #[test]
    fn a_line_that_is_not_an_order_is_reported_with_its_number_and_the_rest_goes_on() {
        let steps = read(&format!("{CANCEL_1}\n\nnonsense\n{CANCEL_2}\n"));
        assert_eq!(
            steps,
            [
                Ok((1, cancel("o-1"))),
                Err(r#"line 3 is not an order: expected ident at line 1 column 2; it begins "nonsense""#
                    .to_owned()),
                Ok((4, cancel("o-2"))),
            ]
        );
    }

    #[test]
    fn the_report_says_what_is_wrong() {
        let wrong = [
            (r#"{"kind":"cancel","order_id":"o-1","reason":"late"}"#, "missing field `customer`"),
            (r#"{"kind":"paint","order_id":"o-1","customer":"c-1"}"#, "unknown variant `paint`"),
            (r#"{"order_id":"o-1","customer":"c-1"}"#, "missing field `kind`"),
            (r#"{"kind":"pay","order_id":"o-1","customer":"c-1","cents":-5}"#, "`-5`"),
            (r#"{"kind":"pay","order_id":"","customer":"c-1","cents":5}"#, "its order_id is empty"),
            (r#"{"kind":"pay","order_id":"o-1","customer":"","cents":5}"#, "its customer is empty"),
            (r#"{"kind":"place","order_id":"o-1","customer":"c-1","items":[]}"#, "it has no items"),
            (
                r#"{"kind":"place","order_id":"o-1","customer":"c-1","items":[{"sku":"tea","quantity":0,"cents":1}]}"#,
                "it orders \"tea\" 0 times",
            ),
            ("[1, 2", "line 1 is not an order"),
        ];
        for (line, why) in wrong {
            let steps = read(line);
            assert!(matches!(&steps[..], [Err(report)] if report.contains(why)), "{line}: {steps:?}");
        }
    }

    #[test]
    fn a_line_beyond_the_limit_is_reported_shortened_and_passed_over() {
        let most = Steps::<&[u8]>::MAX_BYTES;
        let fits = format!("{CANCEL_1}{}", " ".repeat(most - CANCEL_1.len()));
        let too_long = format!("{{{}", "x".repeat(most * 3));
        let steps = read(&format!("{fits}\r\n{too_long}\n{CANCEL_2}"));
        assert_eq!((&steps[0], &steps[2]), (&Ok((1, cancel("o-1"))), &Ok((3, cancel("o-2")))));
        let report = steps[1].clone().unwrap_err();
        assert!(report.starts_with("line 2 is not an order: it is longer than 65536 bytes"), "{report}");
        assert!(report.len() < 200, "{report}");
    }

    #[test]
    fn bytes_that_are_no_text_are_reported_too() {
        let steps: Vec<_> = Steps::new(&b"\xff\xfe{}\n"[..]).collect();
        assert!(matches!(&steps[..], [Err(InputError::NotAnOrder { number: 1, .. })]), "{steps:?}");
    }

    #[test]
    fn a_broken_input_ends_the_steps_with_a_report() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the disk is gone"))
            }
        }
        let input = CANCEL_1.as_bytes().chain(&b"\n"[..]).chain(Broken);
        let mut steps = Steps::new(io::BufReader::new(input));
        assert!(steps.next().unwrap().is_ok());
        let report = steps.next().unwrap().unwrap_err().to_string();
        assert_eq!(report, "could not read past line 1: the disk is gone");
        assert!(steps.next().is_none());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let steps: Vec<Step> = crate::generate::Generator::new(100, 10, 1).collect();
        let lines = steps.iter().map(|step| serde_json::to_string(step).unwrap() + "\n");
        let read: Vec<Step> =
            Steps::new(lines.collect::<String>().as_bytes()).map(|step| step.unwrap().1).collect();
        assert_eq!(read, steps);
    }

    /// The bundled file is valid: every line is a step, every order begins with being placed and is
    /// paid what it costs. It has enough orders per customer to show keys at work.
    #[test]
    fn the_file_of_orders_makes_sense() {
        let file = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/orders.jsonl")).unwrap();
        let mut owes: BTreeMap<String, u64> = BTreeMap::new();
        let mut customers = BTreeSet::new();
        for step in Steps::new(io::BufReader::new(file)) {
            let (number, step) = step.unwrap();
            customers.insert(step.customer().to_owned());
            let order = step.order_id().to_owned();
            match step {
                Step::Place { items, .. } => {
                    assert_eq!(owes.insert(order, total(&items)), None, "line {number}")
                }
                Step::Pay { cents, .. } => assert_eq!(owes.get(&order), Some(&cents), "line {number}"),
                Step::Ship { .. } | Step::Cancel { .. } => {
                    assert!(owes.contains_key(&order), "line {number}")
                }
            }
        }
        assert!((280..=320).contains(&owes.len()), "{} orders", owes.len());
        assert!((50..=70).contains(&customers.len()), "{} customers", customers.len());
    }
}
