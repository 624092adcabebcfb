package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// metricsSource collects the metrics of the agent. *collect.MetricsCollector implements it.
type metricsSource interface {
	Gather(context.Context) []*dto.MetricFamily
	Settings() *metrics.Settings
}

// metricsHandler serves the metrics of the agent, of the machine and of allocations.
type metricsHandler struct{ metricsSource metricsSource }

// read replies with the metrics, as JSON or in the Prometheus format.
func (h *metricsHandler) read(r *request) (any, error) {
	switch format := r.query.Get("format"); format {
	case "prometheus":
		if h.metricsSource.Settings().OmitPrometheusFormat {
			return nil, &statusError{http.StatusUnsupportedMediaType, "Prometheus is not enabled"}
		}
		agent := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return h.metricsSource.Gather(r.Context()), nil })
		// A metric that cannot be gathered does not hide the others.
		options := promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, DisableCompression: true}
		r.isReplyWritten = true
		r.setWriteDeadline()
		promhttp.HandlerFor(prometheus.Gatherers{prometheus.DefaultGatherer, agent}, options).ServeHTTP(r.w, r.Request)
		return nil, nil
	case "":
		return metrics.Summary(h.metricsSource.Gather(r.Context()), time.Now()), nil
	default:
		return nil, badRequestError("format must be prometheus, or be left out")
	}
}
