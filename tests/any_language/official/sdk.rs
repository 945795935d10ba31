//! The official SDKs, and a program of each that sends and reads events with it. A program is made
//! once for all tests, of packages as the language's own registry has them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use outbox_servers::Missing;
use outbox_tests::kind::TransportKind;
use serde_json::Value;

/// Events by their ids.
pub(super) type Events = BTreeMap<String, Value>;

/// An official SDK, by its language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sdk {
    Go,
    Java,
    JavaScript,
    Python,
}

impl Sdk {
    /// Returns the names of the SDK's ways to a broker, as its program knows them.
    pub(super) fn bindings(self, broker: TransportKind, is_sending: bool) -> &'static [&'static str] {
        match (broker, self) {
            (TransportKind::Kafka, _) => &["kafka"],
            (TransportKind::RabbitMq, Self::Go) => &["amqp", "rabbitmq"],
            (TransportKind::RabbitMq, Self::Python) if is_sending => &["amqp", "rabbitmq"],
            (TransportKind::RabbitMq, Self::Python) => &["amqp"],
            (TransportKind::RabbitMq, _) => &["rabbitmq"],
            _ => &["redis"],
        }
    }

    /// Returns the program, made before its first use.
    pub(super) fn program(self) -> Result<Program, Missing> {
        static MADE: [OnceLock<Result<Program, String>>; 4] = [const { OnceLock::new() }; 4];
        let made = MADE[self as usize].get_or_init(|| {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("official-{self:?}"));
            std::fs::create_dir_all(&folder).unwrap();
            match self {
                Self::Go => go(&folder),
                Self::Java => java(&folder),
                Self::JavaScript => javascript(&folder),
                Self::Python => python(&folder),
            }
        });
        made.clone().map_err(|reason| Missing::Absent { server: format!("cloudevents ({self:?})"), reason })
    }
}

/// A command without its last arguments.
#[derive(Clone, Debug)]
pub(super) struct Program {
    command: PathBuf,
    arguments: Vec<PathBuf>,
    variables: Vec<(&'static str, PathBuf)>,
}

impl Program {
    fn new(command: impl Into<PathBuf>, arguments: Vec<PathBuf>) -> Self {
        Self { command: command.into(), arguments, variables: Vec::new() }
    }

    /// Runs it; returns the events that it prints.
    pub(super) async fn run(&self, arguments: &[&str]) -> Events {
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).args(arguments).envs(self.variables.iter().cloned());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let events = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.map(|event| (event["id"].as_str().unwrap().to_owned(), event)).collect()
    }
}

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("any_language/official").join(file)
}

/// Runs a command of a package manager: it fails where there is none, or no registry.
fn fetch(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Err(String::from_utf8_lossy(&said).trim().to_owned())
        }
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
    }
}

fn go(folder: &Path) -> Result<Program, String> {
    fetch(Command::new("go").args(["mod", "download"]).current_dir(here("go")))?;
    let program = folder.join("official");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).current_dir(here("go"));
    // A module that was downloaded must compile: a failure is no reason to skip.
    fetch(&mut build).unwrap_or_else(|reason| panic!("{reason}"));
    Ok(Program::new(program, Vec::new()))
}

fn java(folder: &Path) -> Result<Program, String> {
    let packages = folder.join("classpath");
    let mut resolve = Command::new("mvn");
    resolve.args(["--quiet", "--batch-mode", "dependency:build-classpath", "--file"]).arg(here("pom.xml"));
    fetch(resolve.arg(format!("-Dmdep.outputFile={}", packages.display())))?;
    let packages = std::fs::read_to_string(packages).map_err(|error| error.to_string())?;
    let found = fetch(Command::new("java").arg("-version"));
    found.map(|()| Program::new("java", vec!["-cp".into(), packages.trim().into(), here("Official.java")]))
}

fn javascript(folder: &Path) -> Result<Program, String> {
    let packages = ["cloudevents@10.0.0", "kafkajs@2.2.4", "amqplib@2.3.1", "redis@6.3.1"];
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"]).arg(folder);
    fetch(install.args(packages))?;
    let variables = vec![("NODE_PATH", folder.join("node_modules"))];
    fetch(Command::new("node").arg("--version"))?;
    Ok(Program { variables, ..Program::new("node", vec![here("official.cjs")]) })
}

fn python(folder: &Path) -> Result<Program, String> {
    let packages = ["cloudevents==2.2.0", "confluent-kafka==2.16.1", "pika==1.4.4", "redis==8.1.0"];
    let program = folder.join("bin/python");
    fetch(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    fetch(Command::new(&program).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    Ok(Program::new(program, vec![here("official.py")]))
}
