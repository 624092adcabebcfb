package protocol

import "github.com/hashicorp/nomad/api"

// UpsertServicesRequest is the request of ServiceRegistration.Upsert; its response is a WriteMeta.
type UpsertServicesRequest struct {
	Services []*api.ServiceRegistration
	WriteOptions
}

// DeleteServiceRequest is the request of ServiceRegistration.DeleteByID; its response is a WriteMeta. Namespace is that of the registration.
type DeleteServiceRequest struct {
	ID string
	WriteOptions
}

// GetServiceRequest is the request of ServiceRegistration.GetService. AuthToken is the identity of a task.
type GetServiceRequest struct {
	ServiceName string
	Choose      string // empty, or "n|key" for n registrations chosen by key
	ReadOptions
}

// GetServiceResponse is the response of ServiceRegistration.GetService.
type GetServiceResponse struct {
	Services []*api.ServiceRegistration
	ReadMeta
}

// ListServicesRequest is the request of ServiceRegistration.List. AuthToken is the identity of a task.
type ListServicesRequest struct{ ReadOptions }

// ListServicesResponse is the response of ServiceRegistration.List.
type ListServicesResponse struct {
	Services []*api.ServiceRegistrationListStub
	ReadMeta
}

// ReadVariableRequest is the request of Variables.Read. AuthToken must be the identity of a task: with that of a node, a
// server of Nomad 2.0 with access control crashes.
type ReadVariableRequest struct {
	Path string
	ReadOptions
}

// ReadVariableResponse is the response of Variables.Read. Data is nil if the variable does not exist.
type ReadVariableResponse struct {
	Data *api.Variable
	ReadMeta
}

// ListVariablesRequest is the request of Variables.List. Prefix limits the paths; AuthToken is as in ReadVariableRequest.
type ListVariablesRequest struct{ ReadOptions }

// ListVariablesResponse is the response of Variables.List.
type ListVariablesResponse struct {
	Data []*api.VariableMetadata
	ReadMeta
}
