//! A page of the book with the results of one run: tables, and pictures of them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plot::Bars;
use crate::report::{Table, figures};

/// Results of the parts of one pair, as they are kept in `relay.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) profile: String,
    pub(crate) processor: Option<String>,
    pub(crate) processors: Option<usize>,
    /// Number of processors that other processes used when the measurement began.
    pub(crate) in_use: Option<f64>,
    pub(crate) pair: String,
    pub(crate) servers: Vec<String>,
    pub(crate) tables: Vec<Table>,
}

/// Number of processors in use by others from which a machine counts as busy.
const BUSY: f64 = 0.5;

/// The files of reports, and the folder of the page.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Page {
    /// The files that runs have written, such as target/relay_bench/*/relay.json.
    #[arg(required = true)]
    reports: Vec<PathBuf>,
    /// The folder of the page; its pictures go into its folder `images`.
    #[arg(long, default_value = "book/src")]
    into: PathBuf,
}

/// Name of the page's file.
const NAME: &str = "benchmarks_run.md";

/// Writes the page and its pictures.
pub(crate) fn write(page: &Page) -> Result<(), String> {
    let reports: Result<Vec<Report>, String> = page.reports.iter().map(|file| read(file)).collect();
    let (text, pictures) = render(&reports?);
    let images = page.into.join("images");
    fs::create_dir_all(&images).map_err(|error| format!("{}: {error}", images.display()))?;
    let put = |file: PathBuf, text: &str| {
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    };
    for (name, svg) in &pictures {
        put(images.join(name), svg)?;
    }
    put(page.into.join(NAME), &text)
}

fn read(file: &Path) -> Result<Report, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: not a report: {error}", file.display()))
}

/// Returns the page, and each picture with the name of its file.
pub(crate) fn render(reports: &[Report]) -> (String, Vec<(String, String)>) {
    let (mut text, mut pictures) = ("# One run\n".to_owned(), Vec::new());
    // Writing to a string does not fail.
    let _ = writeln!(text, "\n{}", wrapped(INTRODUCTION));
    let mut last = "";
    for report in reports {
        if report.pair != last {
            let _ = writeln!(text, "\n## {}", title(&report.pair));
        }
        last = &report.pair;
        let _ = writeln!(text, "\n{}", wrapped(&machine(report)));
        // Statements are of interest to who changes them.
        for table in report.tables.iter().filter(|table| table.name != "asked") {
            for (name, alt, bars) in pictures_of(&report.pair, table) {
                let file = format!("benchmark-{}-{name}.svg", report.pair);
                let _ = writeln!(text, "\n![{alt}](images/{file})");
                pictures.push((file, bars.svg()));
            }
            let _ = writeln!(
                text,
                "\n{}\n\n{}",
                wrapped(&sentence(&report.pair, &table.about)),
                markdown(table).trim_end()
            );
        }
    }
    (text, pictures)
}

const INTRODUCTION: &str = "Written by the benchmark itself: `relay -- page`. [Method](benchmarks_method.md) explains the parts and \
    the columns, and [Results](benchmarks.md) the figures. Compare rows of one table; absolute figures differ on other machines.";

/// A pair as a heading: `PostgreSQL to Kafka`.
fn title(pair: &str) -> String {
    let name = |part: &str| match part {
        "postgres" => "PostgreSQL".to_owned(),
        "mysql" => "MySQL".to_owned(),
        "mariadb" => "MariaDB".to_owned(),
        "sqlite" => "SQLite".to_owned(),
        "mongodb" => "MongoDB's stand-in".to_owned(),
        "rabbitmq" => "RabbitMQ".to_owned(),
        "kafka" => "Kafka".to_owned(),
        "redis" => "Redis".to_owned(),
        other => other.to_owned(),
    };
    let parts: Vec<String> = pair.split('-').map(name).collect();
    parts.join(" to ")
}

fn machine(report: &Report) -> String {
    let processors = report.processors.map_or_else(|| "?".to_owned(), |count| count.to_string());
    let processor = report.processor.as_deref().unwrap_or("unknown processor");
    let busy = match report.in_use {
        Some(in_use) if in_use >= BUSY => {
            format!(
                " **The machine was busy** ({in_use:.1} processors in use at the start): rates and latencies say little."
            )
        }
        _ => String::new(),
    };
    format!(
        "{} on {processors} cores ({processor}), profile `{}`.{busy}",
        report.servers.join(" and "),
        report.profile
    )
}

/// The pictures that a table has: name, text for those who do not see it, and bars.
fn pictures_of(pair: &str, table: &Table) -> Vec<(&'static str, String, Bars)> {
    let title = title(pair);
    let picture = |about: &str, parts: &[&'static str], columns: &[&str]| {
        let rows = table.rows.iter().filter_map(|row| {
            let values: Vec<f64> =
                columns.iter().filter_map(|column| table.value(&row.label, column)).collect();
            (!values.is_empty()).then(|| (row.label.clone(), values))
        });
        let bars = Bars { title: format!("{title}: {about}"), parts: parts.to_vec(), rows: rows.collect() };
        (format!("{title}: {about}"), bars)
    };
    let named = |name, (alt, bars)| (name, alt, bars);
    match &*table.name {
        "throughput" => vec![
            named("rate", picture("messages per second", &[""], &["messages/s"])),
            named(
                "cpu",
                picture(
                    "processor time per message, µs",
                    &["own process", "database", "broker"],
                    &["own us", "database us", "broker us"],
                ),
            ),
        ],
        "latency" => vec![named("latency", picture("99th percentile, ms", &[""], &["p99 ms"]))],
        _ => vec![],
    }
}

fn markdown(table: &Table) -> String {
    let cells = |cells: Vec<String>| {
        let cell = |cell: &String| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") };
        format!("|{}\n", cells.iter().map(cell).collect::<String>())
    };
    let head = std::iter::once(String::new()).chain(table.columns.iter().map(|name| name.to_string()));
    let mut text = cells(head.collect());
    text.push_str(&format!("|{}\n", "---|".repeat(table.columns.len() + 1)));
    for row in table.rows.iter().filter(|row| row.values.iter().any(Option::is_some)) {
        let values = row.values.iter().map(|value| value.map_or_else(String::new, cell));
        text.push_str(&cells(std::iter::once(row.label.replace('|', "\\|")).chain(values).collect()));
    }
    text
}

/// A figure with a comma between thousands.
fn cell(value: f64) -> String {
    let text = figures(value);
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let digits = whole.trim_start_matches('-');
    let mut grouped = whole[..whole.len() - digits.len()].to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

fn sentence(pair: &str, about: &str) -> String {
    let about = about.strip_prefix(&format!("{pair}: ")).unwrap_or(about);
    let mut letters = about.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    let text: String = first.chain(letters).collect();
    if text.ends_with('.') { text } else { format!("{text}.") }
}

/// Breaks a text into lines of at most 110 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > 110 {
            lines.push(word.to_owned());
        } else if let Some(line) = lines.last_mut() {
            if last > 0 {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}
