// Package schemas holds every contract that Minutehand has with the outside, once.
package schemas

import _ "embed"

// OpenAPI is the document of the public API. Requests are validated against it, and it lists only what works.
//
//go:embed openapi/minutehand.yaml
var OpenAPI []byte
