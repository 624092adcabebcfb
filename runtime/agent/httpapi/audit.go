package httpapi

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/agent/audit"
)

// clientOf describes the client of a request, for the audit log.
func (a *API) clientOf(r *request, authenticated bool) audit.Auth {
	peer, _ := r.Context().Value(unixSocketContextKey{}).(unixSocketPeer)
	switch g, w := r.rights.grant, r.rights.workload; {
	case w != nil:
		return audit.Auth{Name: fmt.Sprintf("task %s of allocation %s of job %s in namespace %s", w.Task, w.AllocID, w.JobID, w.Namespace)}
	case g != nil && g.Token != nil:
		return audit.Auth{AccessorID: g.Token.AccessorID, Name: g.Token.Name, Global: g.Token.Global, CreateTime: &g.Token.CreateTime}
	case r.Context().Value(authorizedContextKey{}) != nil:
		return audit.Auth{Name: "this agent"}
	case r.rights.tokenErr != nil:
		return audit.Auth{Name: "unknown token"}
	case !authenticated:
		return audit.Auth{Name: "anonymous"}
	case r.rights.isReadOnly:
		return audit.Auth{Name: "read-only token"}
	case r.rights.isClusterUser:
		return audit.Auth{Name: "user of the cluster"}
	case peer.isKnown:
		return audit.Auth{Name: fmt.Sprintf("user %d of this machine", peer.uid)}
	case a.access.control == nil && a.access.operatorToken != "":
		return audit.Auth{Name: "operator token"}
	}
	return audit.Auth{Name: "anonymous"}
}

// recordReceived writes into the audit log that a client has sent a request. An error refuses the request.
func (a *API) recordReceived(r *request, authenticated bool) error {
	if a.config.AuditLog == nil || !strings.HasPrefix(r.URL.Path, "/v1/") {
		return nil
	}
	record := audit.New(a.clientOf(r, authenticated), audit.Request{
		Operation: r.Method, Endpoint: r.URL.Path, Namespace: audit.Namespace{ID: r.namespaceParam()},
		RequestMeta: audit.RequestMeta{RemoteAddress: r.RemoteAddr, UserAgent: r.UserAgent()}, NodeMeta: audit.NodeMeta{IP: a.config.AdvertiseAddr},
	})
	r.auditRecord = &record
	return a.config.AuditLog.Record(record)
}

// recordComplete writes the result of a request into the audit log. It returns err or, for a successful request, why the log could not
// be written.
func (a *API) recordComplete(r *request, err error) error {
	if r.auditRecord == nil {
		return err
	}
	record := *r.auditRecord
	record.Stage = audit.OperationComplete
	record.Request.Object = r.auditObject
	record.Response = &audit.Response{StatusCode: cmp.Or(r.statusCode, http.StatusOK)}
	if err != nil {
		record.Response.StatusCode, record.Response.Error = r.statusOfError(err), err.Error()
	}
	return cmp.Or(err, a.config.AuditLog.Record(record))
}
