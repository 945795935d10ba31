//! The commands.

mod act;
mod act_on_keys;
mod audit;
mod backup;
mod bench;
mod canary;
mod canary_left;
mod check;
mod dashboard;
mod edit;
mod examine;
mod explain;
mod forget;
mod http;
mod identity;
mod keys;
mod list;
mod migrate;
mod overview;
mod publish;
mod relay;
mod signals;
mod status;
mod tail;
mod verifying;

use clap::CommandFactory;
#[cfg(feature = "otlp")]
pub(crate) use http::SECONDS;
use outbox::admin::{KeyOperation, View};

use crate::app::App;
use crate::args::{Cli, Command};
use crate::exit::{Exit, Failed, Outcome};
use crate::log;
use crate::otlp::Otlp;

/// Runs a command.
pub(crate) async fn run(cli: Cli) -> Outcome {
    match cli.command {
        // These need no settings.
        Command::Completions { shell } => return completions(shell),
        Command::Man { folder } => return man(&folder),
        _ => {}
    }
    let mut app = App::new(&cli.global)?;
    if matches!(cli.command, Command::Relay(_) | Command::Dashboard(_))
        && cli.global.log.is_none()
        && app.settings.log == "warn"
    {
        // A program of its own says what it does.
        app.settings.log = "info".to_owned();
    }
    let otlp = match &cli.command {
        Command::Relay(args) => {
            relay::configure(&mut app.settings, args);
            Otlp::start(&app.settings)?
        }
        _ => None,
    };
    log::start(&app.settings.log, otlp.as_ref())?;
    match cli.command {
        Command::Completions { .. } | Command::Man { .. } => Ok(Exit::Done),
        Command::Migrate { print } => migrate::run(&app, print).await,
        Command::Check => check::run(&app).await,
        Command::BackupCheck => backup::run(&app).await,
        Command::Doctor => check::doctor(&app).await,
        Command::Relay(args) => relay::run(&app, &args, otlp).await,
        Command::Dashboard(args) => dashboard::run(&app, &args).await,
        Command::Status(args) => status::run(&app, &args).await,
        Command::Top(args) => status::top(&app, &args).await,
        Command::Relays(args) => overview::relays(&app, &args).await,
        Command::Routes => overview::routes(&app).await,
        Command::Topics(args) => overview::topics(&app, &args).await,
        Command::Messages(view) => list::messages(&app, view).await,
        Command::Tail(args) => tail::run(&app, &args).await,
        Command::Audit(args) => audit::run(&app, &args).await,
        Command::Explain(key) => explain::run(&app, &key).await,
        Command::Dead(view) => list::run(&app, View::DeadLetters, view).await,
        Command::Parked(view) => list::run(&app, View::Parked, view).await,
        Command::Scheduled(view) => list::run(&app, View::Scheduled, view).await,
        Command::History(view) => list::run(&app, View::History, view).await,
        Command::Keys(view) => keys::run(&app, view).await,
        Command::Requeue { select, edit: Some(edit) } => edit::run(&app, &select, &edit).await,
        Command::Requeue { select, edit: None } => act::run(&app, act::Action::Requeue, &select).await,
        Command::Purge(select) => act::run(&app, act::Action::Purge, &select).await,
        Command::Replay(select) => act::run(&app, act::Action::Replay, &select).await,
        Command::Cancel(select) => act::run(&app, act::Action::Cancel, &select).await,
        Command::Forget(args) => forget::run(&app, args).await,
        Command::Hold(select) => act_on_keys::run(&app, KeyOperation::Hold, &select).await,
        Command::Release(select) => act_on_keys::run(&app, KeyOperation::Release, &select).await,
        Command::Skip(select) => act_on_keys::run(&app, KeyOperation::Skip, &select).await,
        Command::Discard(select) => act_on_keys::run(&app, KeyOperation::Discard, &select).await,
        Command::Pause(args) => act::pause(&app, &args, true).await,
        Command::Resume(args) => act::pause(&app, &args, false).await,
        Command::Identity { new } => identity::run(&app, new.is_some()).await,
        Command::Publish(args) => publish::run(&app, args).await,
        Command::Verify(args) => match args.every {
            Some(every) => verifying::run(&app, &args, every).await,
            None => canary::verify(&app, &args.canary).await,
        },
        Command::Bench(args) => bench::run(&app, &args).await,
    }
}

fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "outbox", &mut script);
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
    Ok(Exit::Done)
}

fn man(folder: &std::path::Path) -> Outcome {
    clap_mangen::generate_to(Cli::command(), folder).map_err(|error| {
        Failed::error(format!("could not write manual pages into {}: {error}", folder.display()))
    })?;
    Ok(Exit::Done)
}
