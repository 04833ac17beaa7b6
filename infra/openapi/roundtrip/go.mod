// The client that oapi-codegen makes of the OpenAPI document, and a round trip with it. Not part of the workspace:
// infra/openapi/check generates client/ into a copy of this folder.
module roundtrip

go 1.26.0

require github.com/oapi-codegen/runtime v1.8.0

require (
	github.com/apapsch/go-jsonmerge/v2 v2.0.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
)
