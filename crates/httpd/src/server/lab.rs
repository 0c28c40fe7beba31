//! Handlers for experiments: CPU time, bytes, an echo.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use rustix::time::{ClockId, clock_gettime};

use crate::server::builder::Builder;
use crate::site::any_response::Response;
use crate::site::handler::Request;
use crate::site::into_response::IntoResponse;
use crate::site::response_body::Body;
use crate::site::shed::shed_if_late;

/// Maximum CPU time, in microseconds, and maximum number of bytes of a request.
const MAX_SPIN_US: u64 = 10_000_000;
const MAX_BYTES: u64 = 1 << 30;

impl Builder {
    /// Adds handlers for experiments: `/spin?us=N` uses N microseconds of CPU time (at most ten
    /// seconds), `/bytes?n=N` sends N bytes (at most 1 GiB), and `/echo` returns the request's
    /// body, or its head if it has no body. Do not expose them to the public.
    pub fn lab_routes(self) -> Self {
        self.route("/spin", shed_if_late(spin)).route("/bytes", bytes).route("/echo", echo)
    }
}

/// Returns the value of a query parameter.
fn number(request: &Request, name: &str, max: u64) -> Result<u64, (StatusCode, String)> {
    let query = request.uri().query().unwrap_or_default();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name).map(|(_, value)| value);
    let number = value.and_then(|value| value.parse().ok()).filter(|n| *n <= max);
    let wrong = || format!("{name} must be a number up to {max}, as in ?{name}=1\n");
    number.ok_or_else(|| (StatusCode::BAD_REQUEST, wrong()))
}

fn spin(request: Request) -> Result<String, (StatusCode, String)> {
    let us = number(&request, "us", MAX_SPIN_US)?;
    // CPU time rather than wall time: a preempted thread uses none.
    let until = cpu_time() + Duration::from_micros(us);
    while cpu_time() < until {
        std::hint::spin_loop();
    }
    Ok(format!("{us}\n"))
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn bytes(request: Request) -> Result<Response, (StatusCode, String)> {
    const PIECE: usize = 64 * 1024;
    static ZEROS: [u8; PIECE] = [b'0'; PIECE];
    let n = number(&request, "n", MAX_BYTES)?;
    let pieces = (0..n).step_by(PIECE).map(move |at| {
        let len = (n - at).min(PIECE as u64) as usize;
        Ok(Bytes::from_static(&ZEROS[..len]))
    });
    Ok(Response::new(Body::sized(n, pieces)))
}

fn echo(request: Request) -> Response {
    let (head, body) = request.into_parts();
    if !body.is_empty() {
        let mut response = Response::new(body.into());
        if let Some(kind) = head.headers.get(http::header::CONTENT_TYPE) {
            response.headers_mut().insert(http::header::CONTENT_TYPE, kind.clone());
        }
        return response;
    }
    let mut text = format!("{} {} {:?}\n", head.method, head.uri, head.version);
    for (name, value) in &head.headers {
        text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    }
    text.into_response()
}
