//! What a listener of its own answers: metrics in the text format of OpenMetrics, and whether the server is alive and
//! ready.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::site::handler::{Handler, Request};
use crate::site::into_handler::IntoHandler;
use crate::site::metrics::Metrics;
use crate::site::reply::Response;
use crate::site::response_body::Body;

/// Returns the handler of `/metrics`.
pub(crate) fn metrics(metrics: Metrics) -> impl Handler {
    let mut registry = Registry::with_prefix("evring");
    registry.register_collector(Box::new(Exposition(metrics)));
    let handler = move |_: Request| {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut out, &registry);
        const TYPE: HeaderValue =
            HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        let mut response = Response::new(Body::from(out));
        response.headers_mut().insert(CONTENT_TYPE, TYPE);
        response
    };
    IntoHandler::into_handler(handler)
}

/// Returns the handler of `/readyz`: 503 while the server drains.
pub(crate) fn readiness(drains: Arc<AtomicBool>) -> impl Handler {
    let handler = move |_: Request| {
        let drains = drains.load(Ordering::Relaxed);
        let text = if drains { "draining\n" } else { "ready\n" };
        let mut response = Response::new(Body::from(text));
        if drains {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    };
    IntoHandler::into_handler(handler)
}

#[derive(Debug)]
struct Exposition(Metrics);

/// Values that go up and down.
const GAUGES: [&str; 2] = ["backlog", "service_rate"];

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (mut accepted, mut closed) = (0, 0);
        let mut responses = Vec::new();
        for (name, sum) in self.0.sums() {
            if let Some(class) = name.strip_prefix("responses_") {
                responses.push((class, sum));
                continue;
            }
            match name {
                "connections_accepted" => accepted = sum,
                "connections_closed" => closed = sum,
                _ => {}
            }
            let is_gauge = GAUGES.contains(&name);
            let kind = if is_gauge { MetricType::Gauge } else { MetricType::Counter };
            let help = name.replace('_', " ");
            let mut metric = encoder.encode_descriptor(name, &help, None, kind)?;
            match is_gauge {
                true => metric.encode_gauge(&(sum as i64))?,
                false => metric.encode_counter::<NoLabelSet, _, u64>(&sum, None)?,
            }
        }
        let help = "connections that are open";
        let mut open =
            encoder.encode_descriptor("connections_open", help, None, MetricType::Gauge)?;
        open.encode_gauge(&(accepted.saturating_sub(closed) as i64))?;
        let help = "responses by class of status";
        let mut family = encoder.encode_descriptor("responses", help, None, MetricType::Counter)?;
        for (class, sum) in responses {
            let labels = [("class", class)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&sum, None)?;
        }
        let help = "time from the head of a request to its response, in seconds";
        let name = "response_time_seconds";
        let mut times = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let (buckets, sum) = self.0.times();
        let count = buckets.iter().map(|(_, count)| count).sum();
        times.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}
