package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// otlpSender sends requests to a collector.
type otlpSender interface {
	// send returns how many spans or data points the collector has rejected.
	send(ctx context.Context, message proto.Message) (rejectedItems int, err *sendError)
	close()
}

// sendError is a request's error. Its text contains nothing sent by the collector, because the collector could return a request
// header, which can be a secret.
type sendError struct {
	text       string
	canRetry   bool          // the collector can accept the same request later
	retryDelay time.Duration // delay requested by the collector before the next request; 0 if it requests none
}

func (e *sendError) Error() string { return e.text }

func newSender(c Config, g *otelSignal) (otlpSender, error) {
	if c.Protocol == ProtocolGRPC {
		return newGRPCSender(c, g.grpcMethod)
	}
	return newHTTPSender(c), nil
}

// httpSender sends OTLP over HTTP.
type httpSender struct {
	url     string
	headers map[string]string
	client  *http.Client
}

func newHTTPSender(c Config) *httpSender {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxConnsPerHost = 1, 1
	return &httpSender{c.CollectorURL, c.Headers, &http.Client{
		Transport: transport,
		// A redirect would send the headers to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (s *httpSender) close() { s.client.CloseIdleConnections() }

// maxResponse limits how much of a response is read, in bytes.
const maxResponse = 64 << 10

func (s *httpSender) send(ctx context.Context, message proto.Message) (rejectedItems int, _ *sendError) {
	body, err := proto.Marshal(message)
	if err != nil {
		return 0, &sendError{text: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return 0, &sendError{text: err.Error()}
	}
	for name, value := range s.headers {
		request.Header.Set(name, value)
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("User-Agent", userAgent)
	response, err := s.client.Do(request)
	if err != nil {
		return 0, &sendError{text: connectionErrorText(ctx, err), canRetry: true}
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	switch code := response.StatusCode; {
	case code >= 200 && code < 300 && err != nil:
		return 0, nil // the collector has accepted the data, even if its response cannot be read
	case code >= 200 && code < 300:
		return rejectedItemCount(content), nil
	case code == http.StatusTooManyRequests, code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 if the header is missing or has a date
		return 0, &sendError{text: httpErrorText(code), canRetry: true, retryDelay: min(time.Duration(seconds), 3600) * time.Second}
	default:
		return 0, &sendError{text: httpErrorText(code)}
	}
}

func httpErrorText(code int) string {
	return strings.TrimSpace(fmt.Sprintf("the collector answered %d %s", code, http.StatusText(code)))
}

// connectionErrorText describes why there is no response. It uses only the text of network and certificate errors, because other
// errors' text could have a part of the request or the response.
func connectionErrorText(ctx context.Context, err error) string {
	var networkErr *net.OpError
	var certificateErr *tls.CertificateVerificationError
	switch {
	case ctx.Err() != nil:
		return "the collector did not answer in time"
	case errors.As(err, &networkErr):
		return networkErr.Error()
	case errors.As(err, &certificateErr):
		return certificateErr.Error()
	}
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err
	}
	return fmt.Sprintf("no response of the collector: %T", err)
}

const userAgent = "nomad-lite"

// grpcSender sends OTLP over gRPC.
type grpcSender struct {
	conn         *grpc.ClientConn
	exportMethod string // full gRPC method name; the encodings of its request and of TracesData or MetricsData are equal
	headers      metadata.MD
}

// defaultGRPCPort is the port for OTLP over gRPC.
const defaultGRPCPort = "4317"

func newGRPCSender(c Config, method string) (*grpcSender, error) {
	u, err := url.Parse(c.CollectorURL)
	if err != nil {
		return nil, errors.New("the endpoint is not a URL") // err has the URL's text, which can contain a secret
	}
	transport := insecure.NewCredentials()
	if u.Scheme == "https" {
		transport = credentials.NewTLS(nil)
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), defaultGRPCPort)
	}
	conn, err := grpc.NewClient("dns:///"+address, grpc.WithTransportCredentials(transport), grpc.WithUserAgent(userAgent),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)))
	if err != nil {
		return nil, fmt.Errorf("connect to the collector: %w", err)
	}
	return &grpcSender{conn, method, metadata.New(c.Headers)}, nil
}

func (s *grpcSender) close() { s.conn.Close() }

func (s *grpcSender) send(ctx context.Context, message proto.Message) (rejectedItems int, _ *sendError) {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, s.headers), requestTimeout)
	defer cancel()
	response := new(emptypb.Empty) // has the response's fields as unknown fields
	err := s.conn.Invoke(ctx, s.exportMethod, message, response)
	if err == nil {
		return rejectedItemCount(response.ProtoReflect().GetUnknown()), nil
	}
	failed := status.Convert(err)
	sendErr := &sendError{text: fmt.Sprintf("the collector answered with gRPC status %s", failed.Code())}
	switch failed.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		sendErr.canRetry = true
		sendErr.retryDelay, _ = requestedRetryDelay(failed)
	case codes.ResourceExhausted:
		sendErr.retryDelay, sendErr.canRetry = requestedRetryDelay(failed)
	}
	return 0, sendErr
}

// requestedRetryDelay returns the delay requested by a collector before the next request, and false if it requests none.
func requestedRetryDelay(s *status.Status) (delay time.Duration, isRequested bool) {
	for _, detail := range s.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			return retry.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// rejectedItemCount returns the number of rejected spans or data points in a collector's encoded response. The response has the
// field partial_success (1), which has the field rejected_spans or rejected_data_points (1).
func rejectedItemCount(response []byte) int {
	partial, _ := protowire.ConsumeBytes(skipToProtoFieldValue(response, 1, protowire.BytesType))
	rejected, _ := protowire.ConsumeVarint(skipToProtoFieldValue(partial, 1, protowire.VarintType))
	return int(min(rejected, math.MaxInt32))
}

// skipToProtoFieldValue returns the part of an encoded message that starts with a field's value, or nil if the message lacks the
// field.
func skipToProtoFieldValue(message []byte, number protowire.Number, wireType protowire.Type) []byte {
	for len(message) > 0 {
		n, t, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
		if n == number && t == wireType {
			return message
		}
		if size = protowire.ConsumeFieldValue(n, t, message); size < 0 {
			return nil
		}
		message = message[size:]
	}
	return nil
}
