//! The way to a broker: the addresses that its name has, one after the other.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::{Instant, timeout};

/// Connects to one of the addresses of a host, trying each for an even share of the time: one that
/// swallows everything does not take that of the others. The last one has no limit of its own.
///
/// Cancellation: safe.
///
/// # Errors
///
/// The error of the last address; or that the name has none.
pub(crate) async fn connect<S, F>(
    (host, port): (&str, u16),
    within: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<S>
where
    F: Future<Output = io::Result<S>>,
{
    let start = Instant::now();
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    each_in_turn(&addresses, within.saturating_sub(start.elapsed()), connect).await
}

async fn each_in_turn<S, F>(
    addresses: &[SocketAddr],
    within: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<S>
where
    F: Future<Output = io::Result<S>>,
{
    let end = Instant::now() + within;
    let Some((last, others)) = addresses.split_last() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host name resolves to no address"));
    };
    for (at, address) in others.iter().enumerate() {
        let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        let share = end.saturating_duration_since(Instant::now()) / left;
        match timeout(share, connect(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => tracing::debug!(%address, %error, "not this address"),
            Err(_) => tracing::debug!(%address, ?share, "this address does not answer"),
        }
    }
    connect(*last).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(3);

    fn addresses(count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|at| SocketAddr::from(([127, 0, 0, at], 5672))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_swallows_everything_leaves_time_to_the_others() {
        let all = addresses(3);
        let connect = async |address: SocketAddr| match address {
            address if address == all[0] => std::future::pending().await,
            address if address == all[1] => Err(io::ErrorKind::ConnectionRefused.into()),
            address => Ok(address),
        };
        let connected = timeout(WITHIN / 2, each_in_turn(&all, WITHIN, connect)).await;
        assert_eq!(connected.unwrap().unwrap(), all[2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_last_address_says_is_told() {
        let refused = async |_| Err::<(), _>(io::ErrorKind::ConnectionRefused.into());
        let error = each_in_turn(&addresses(2), WITHIN, refused).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(each_in_turn(&[], WITHIN, refused).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
