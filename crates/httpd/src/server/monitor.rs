//! The responses of a separate listener: metrics in the text formats of OpenMetrics and Prometheus, and whether the
//! server is alive and ready.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "tls")]
use std::time::SystemTime;

use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, VARY};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::site::any_response::Response;
use crate::site::handler::{Handler, Request};
use crate::site::into_handler::IntoHandler;
use crate::site::metrics::{Metrics, Sum};
use crate::site::response_body::Body;

/// Returns the handler of `/metrics`: OpenMetrics for clients that accept it, else the older text format, which all
/// tools read.
pub(crate) fn metrics(metrics: Metrics) -> impl Handler {
    let mut registry = Registry::with_prefix("evring");
    registry.register_collector(Box::new(Exposition(metrics.clone())));
    let handler = move |request: Request| {
        metrics.refresh();
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut out, &registry);
        const OPEN: HeaderValue =
            HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        const TEXT: HeaderValue =
            HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        let mut accepted = request.headers().get_all(ACCEPT).iter();
        let is_open = accepted.any(|value| {
            value.to_str().is_ok_and(|types| types.contains("application/openmetrics-text"))
        });
        let (kind, out) = if is_open { (OPEN, out) } else { (TEXT, prometheus_text(&out)) };
        let mut response = Response::new(Body::from(out));
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
        response
    };
    IntoHandler::into_handler(handler)
}

/// Returns the metrics of a text of OpenMetrics in the format 0.0.4 of Prometheus, in which the name of a counter's
/// family ends in `_total`, too.
fn prometheus_text(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    // A family begins with its help.
    let mut help = None;
    for line in open.lines().filter(|line| *line != "# EOF") {
        if let Some(found) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help = Some(found);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, text)) = help.take() {
                let _ = writeln!(out, "# HELP {name}{suffix} {text}");
            }
            let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
        } else {
            let _ = writeln!(out, "{line}");
        }
    }
    out
}

/// Returns the handler of `/readyz`: 503 while the server drains.
pub(crate) fn readiness(drains: Arc<AtomicBool>) -> impl Handler {
    let handler = move |_: Request| match drains.load(Ordering::Relaxed) {
        true => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        false => (StatusCode::OK, "ready\n"),
    };
    IntoHandler::into_handler(handler)
}

#[derive(Debug)]
struct Exposition(Metrics);

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (mut accepted, mut closed) = (0, 0);
        let mut responses = Vec::new();
        for Sum { name, help, value, is_gauge } in self.0.sums() {
            if let Some(class) = name.strip_prefix("responses_") {
                responses.push((class, value));
                continue;
            }
            match name {
                "connections_accepted" => accepted = value,
                "connections_closed" => closed = value,
                "cpu_us" => {
                    let help = "CPU time of the threads in seconds.";
                    let counter = MetricType::Counter;
                    encoder
                        .encode_descriptor("cpu_seconds", help, None, counter)?
                        .encode_counter::<NoLabelSet, _, u64>(&(value as f64 / 1e6), None)?;
                    continue;
                }
                _ => {}
            }
            let kind = if is_gauge { MetricType::Gauge } else { MetricType::Counter };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            match is_gauge {
                true => metric.encode_gauge(&(value as i64))?,
                false => metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
            }
        }
        let help = "Connections that are open.";
        let mut open =
            encoder.encode_descriptor("connections_open", help, None, MetricType::Gauge)?;
        open.encode_gauge(&(accepted.saturating_sub(closed) as i64))?;
        #[cfg(feature = "tls")]
        encode_expiries(&self.0, &mut encoder)?;
        let help = "Responses by class of status.";
        let mut family = encoder.encode_descriptor("responses", help, None, MetricType::Counter)?;
        for (class, sum) in responses {
            let labels = [("class", class)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&sum, None)?;
        }
        let help = "Time from the head of a request to the end of its response in seconds.";
        let name = "response_time_seconds";
        let mut times = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let (buckets, sum) = self.0.times();
        let count = buckets.iter().map(|(_, count)| count).sum();
        times.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

/// Writes when the certificates expire, for an alert before that.
#[cfg(feature = "tls")]
fn encode_expiries(metrics: &Metrics, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let expiries = metrics.expiries();
    if expiries.is_empty() {
        return Ok(());
    }
    let help = "Time at which the first certificate of a file expires, in seconds since 1970.";
    let name = "tls_certificate_expiry_timestamp_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (file, at) in expiries {
        let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let labels = [("file", file.display().to_string())];
        family.encode_family(&labels)?.encode_gauge(&(seconds as i64))?;
    }
    Ok(())
}
