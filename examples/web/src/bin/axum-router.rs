//! A router of axum, served by evring's mechanisms: state, extractors, a function around handlers, server-sent events,
//! and a handler that waits for a timer of tokio.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use evring_httpd::Server;
use futures_lite::stream::{self, Stream};
use serde::{Deserialize, Serialize};

/// How often each handler was called.
#[derive(Debug, Default)]
struct Counters {
    greetings: AtomicU64,
}

#[derive(Debug, Deserialize)]
struct Greeting {
    name: Option<String>,
}

async fn greet(State(counters): State<Arc<Counters>>, Query(greeting): Query<Greeting>) -> String {
    let n = counters.greetings.fetch_add(1, Ordering::Relaxed) + 1;
    format!("Hello, {}! (greeting {n})\n", greeting.name.as_deref().unwrap_or("World"))
}

#[derive(Debug, Deserialize, Serialize)]
struct Point {
    x: f64,
    y: f64,
}

async fn scale(
    Path(factor): Path<f64>,
    Json(point): Json<Point>,
) -> Result<Json<Point>, StatusCode> {
    if factor == 0.0 {
        return Err(StatusCode::UNPROCESSABLE_ENTITY);
    }
    Ok(Json(Point { x: point.x * factor, y: point.y * factor }))
}

async fn count() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(stream::iter((1..=3).map(|n| Ok(Event::default().event("count").data(n.to_string())))))
}

async fn wait(Path(ms): Path<u64>) -> String {
    tokio::time::sleep(Duration::from_millis(ms.min(10_000))).await;
    format!("{ms} ms later\n")
}

async fn mark(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    if let Ok(path) = HeaderValue::from_str(&path) {
        response.headers_mut().insert("x-path", path);
    }
    response
}

fn router() -> Router {
    Router::new()
        .route("/greet", get(greet))
        .route("/scale/{factor}", post(scale))
        .route("/count", get(count))
        .route("/wait/{ms}", get(wait))
        .route("/echo", post(async |request: Request| Response::new(request.into_body())))
        .fallback(async || (StatusCode::NOT_FOUND, "nothing here\n").into_response())
        .layer(middleware::from_fn(mark))
        .with_state(Arc::default())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let backend = arguments.next().unwrap_or_else(|| "auto".to_owned());
    // Its thread drives timers; the handlers run in the server's workers.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let server = Server::builder()
        .listen(address)
        .backend(&backend)
        .tokio(runtime.handle().clone())
        .route("/", router())
        .start()?;
    println!("listening on http://{}", server.addresses()[0]);
    Ok(server.wait_until_signal()?)
}
