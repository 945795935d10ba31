//! One client's connection: reads commands, and writes answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::access::Access;
use crate::commands::Command;
use crate::front::Mode;
use crate::refusal::{BAD_VALUE, Refusal};
use crate::server::Server;
use crate::wire::{self, HEADER, Header, Request};

/// Time limit for a client to finish a message that it has begun, and to accept an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves a client until it disconnects, sends an invalid message, or the server stops. A running
/// command is finished.
pub(crate) async fn serve(server: Arc<Server>, mut socket: TcpStream, mut mode: watch::Receiver<Mode>) {
    // Whatever ends it, the client sees that the connection ended.
    let _ = socket.set_nodelay(true);
    let mut access = Access::new(server.options.user.clone());
    loop {
        let mut header = [0; HEADER];
        tokio::select! {
            biased;
            _ = mode.wait_for(|mode| *mode == Mode::Stops) => return,
            read = socket.read_exact(&mut header) => if read.is_err() { return },
        }
        let Ok(request) = read(&mut socket, header).await else { return };
        if goes_on(&mut mode).await.is_err() {
            return;
        }
        let answer = handle(&server, &mut access, request.1).await;
        if goes_on(&mut mode).await.is_err() {
            return;
        }
        let Some((answer, legacy, answered)) = answer else { return };
        if !answered {
            continue;
        }
        let Ok(bytes) = wire::encode(request.0, legacy, &answer) else { return };
        if !matches!(timeout(PATIENCE, socket.write_all(&bytes)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Waits while the server is paused.
async fn goes_on(mode: &mut watch::Receiver<Mode>) -> Result<(), watch::error::RecvError> {
    mode.wait_for(|mode| *mode != Mode::Pauses).await.map(drop)
}

async fn read(socket: &mut TcpStream, header: [u8; HEADER]) -> io::Result<(i32, Request)> {
    let header = Header::decode(header).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    let length = u64::try_from(header.length).unwrap_or(u64::MAX);
    // The buffer grows as bytes arrive, not as a header promises.
    let read = timeout(PATIENCE, socket.take(length).read_to_end(&mut bytes)).await??;
    if read < header.length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((header.id, Request::decode(header, &bytes).map_err(io::Error::other)?))
}

/// Returns the answer, and its format; `None` where the connection ends without one.
async fn handle(
    server: &Server,
    access: &mut Access,
    request: Request,
) -> Option<(bson::Document, bool, bool)> {
    let Request { command, legacy, answered } = request;
    server.clock.hear(&command);
    let done = match Command::read(command) {
        Ok(command) if legacy && !crate::hello::is_hello(&command.name) => {
            Err(Refusal::new(BAD_VALUE, format!("{}: only a handshake may come as OP_QUERY", command.name)))
        }
        Ok(command) => match access.check(&command) {
            Some(said) => said,
            None => server.handle(&command).await,
        },
        Err(refusal) => Err(refusal),
    };
    let mut answer = match done {
        Ok(answer) => answer,
        Err(refusal) => refusal.answer()?,
    };
    // A standalone server has no cluster.
    if !server.options.standalone {
        server.clock.stamp(&mut answer);
    }
    Some((answer, legacy, answered))
}
