//! The router that both servers run: text, a path with a query and state, JSON in both directions, and a
//! function around all handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Path, Query, Request, State};
use axum::http::HeaderValue;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

/// The number of users that were looked up.
type Lookups = Arc<AtomicU64>;

#[derive(Deserialize)]
struct Options {
    name: String,
}

#[derive(Serialize)]
struct User {
    id: u64,
    name: String,
    is_new: bool,
}

#[derive(Deserialize, Serialize)]
struct Point {
    x: f64,
    y: f64,
}

async fn user(
    State(lookups): State<Lookups>,
    Path(id): Path<u64>,
    Query(options): Query<Options>,
) -> Json<User> {
    let is_new = lookups.fetch_add(1, Ordering::Relaxed) == u64::MAX;
    Json(User { id, name: options.name, is_new })
}

async fn mirror(Json(point): Json<Point>) -> Json<Point> {
    Json(Point { x: -point.x, y: -point.y })
}

async fn mark(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert("x-lab", HeaderValue::from_static("1"));
    response
}

/// Returns the router. `/hello` answers with `hello`.
pub(crate) fn router(hello: &'static str) -> Router {
    Router::new()
        .route("/hello", get(move || async move { hello }))
        .route("/users/{id}", get(user))
        .route("/points", post(mirror))
        .layer(middleware::from_fn(mark))
        .with_state(Lookups::default())
}
