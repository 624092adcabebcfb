package protocol

import "github.com/hashicorp/nomad/api"

// UpsertServicesRequest is the ServiceRegistration.Upsert request; its response is a WriteMeta.
type UpsertServicesRequest struct {
	Services []*api.ServiceRegistration
	WriteOptions
}

// DeleteServiceRequest is the ServiceRegistration.DeleteByID request; its response is a WriteMeta. Namespace is the
// registration's.
type DeleteServiceRequest struct {
	ID string
	WriteOptions
}

// GetServiceRequest is the ServiceRegistration.GetService request. AuthToken is a task's identity.
type GetServiceRequest struct {
	ServiceName string
	Choose      string // empty, or "n|key" for n registrations chosen by key
	ReadOptions
}

// GetServiceResponse is the ServiceRegistration.GetService response.
type GetServiceResponse struct {
	Services []*api.ServiceRegistration
	ReadMeta
}

// ListServicesRequest is the ServiceRegistration.List request. AuthToken is a task's identity.
type ListServicesRequest struct{ ReadOptions }

// ListServicesResponse is the ServiceRegistration.List response.
type ListServicesResponse struct {
	Services []*api.ServiceRegistrationListStub
	ReadMeta
}

// ReadVariableRequest is the Variables.Read request. AuthToken must be a task's identity: with a node's, a Nomad 2.0 server with
// access control crashes.
type ReadVariableRequest struct {
	Path string
	ReadOptions
}

// ReadVariableResponse is the Variables.Read response. Data is nil if the variable does not exist.
type ReadVariableResponse struct {
	Data *api.Variable
	ReadMeta
}

// ListVariablesRequest is the Variables.List request. Prefix limits the paths; AuthToken is as in ReadVariableRequest.
type ListVariablesRequest struct{ ReadOptions }

// ListVariablesResponse is the Variables.List response.
type ListVariablesResponse struct {
	Data []*api.VariableMetadata
	ReadMeta
}
