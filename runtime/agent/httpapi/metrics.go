package httpapi

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// metricsSource collects the metrics of the agent. *collect.Collector implements it.
type metricsSource interface {
	Gather(context.Context) []*dto.MetricFamily
	Settings() *metrics.Settings
}

// metricsHandler serves the metrics of the agent, of the machine and of allocations.
type metricsHandler struct{ source metricsSource }

// read collects the metrics of a request.
func (h *metricsHandler) read(r *request) (any, error) {
	switch format := r.query.Get("format"); format {
	case "prometheus":
		if h.source.Settings().OmitPrometheusFormat {
			return nil, &statusError{http.StatusUnsupportedMediaType, "Prometheus is not enabled"}
		}
		// The package promhttp is not used because it would add 0.3 MB to the binary: see DESIGN.md.
		families, err := prometheus.DefaultGatherer.Gather()
		if len(families) == 0 {
			return nil, err
		}
		families = append(families, h.source.Gather(r.Context())...)
		r.replyWritten = true
		r.setWriteDeadline()
		format, names := expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...), r.query["name[]"]
		r.w.Header().Set("Content-Type", string(format))
		encoder := expfmt.NewEncoder(r.w, format)
		for _, family := range families {
			if len(names) == 0 || slices.Contains(names, family.GetName()) {
				_ = encoder.Encode(family) // errors are ignored: the client may have disconnected, and other metric families can still be encoded
			}
		}
		return nil, nil
	case "":
		return metrics.Summary(h.source.Gather(r.Context()), time.Now()), nil
	default:
		return nil, badRequest("format must be prometheus, or be left out")
	}
}
