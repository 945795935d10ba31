package main

import (
	"bytes"
	"context"
	"io"
	"strings"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/types"
)

// A record of a broker that the SDK has no binding for: headers, whose attributes have a prefix, and a body.
type record struct {
	prefix      string
	headers     map[string]string
	contentType string
	body        []byte
}

func (r *record) Start(context.Context) error {
	r.headers = map[string]string{}
	return nil
}

func (r *record) End(context.Context) error { return nil }

func (r *record) SetAttribute(attribute spec.Attribute, value any) error {
	if attribute.Kind() == spec.DataContentType {
		text, err := types.Format(value)
		r.contentType = text
		return err
	}
	return r.SetExtension(attribute.Name(), value)
}

func (r *record) SetExtension(name string, value any) error {
	if value == nil {
		return nil
	}
	text, err := types.Format(value)
	r.headers[r.prefix+name] = text
	return err
}

func (r *record) SetData(data io.Reader) (err error) {
	r.body, err = io.ReadAll(data)
	return err
}

func (r *record) SetStructuredEvent(_ context.Context, format format.Format, event io.Reader) error {
	r.contentType = format.MediaType()
	return r.SetData(event)
}

func (r *record) version() spec.Version {
	return spec.WithPrefix(r.prefix).Version(r.headers[r.prefix+"specversion"])
}

func (r *record) ReadEncoding() binding.Encoding {
	if format.Lookup(r.contentType) != nil {
		return binding.EncodingStructured
	}
	if r.version() != nil {
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (r *record) ReadStructured(ctx context.Context, writer binding.StructuredWriter) error {
	if r.ReadEncoding() != binding.EncodingStructured {
		return binding.ErrNotStructured
	}
	return writer.SetStructuredEvent(ctx, format.Lookup(r.contentType), bytes.NewReader(r.body))
}

func (r *record) ReadBinary(ctx context.Context, writer binding.BinaryWriter) error {
	version := r.version()
	if version == nil {
		return binding.ErrNotBinary
	}
	if r.contentType != "" {
		if err := writer.SetAttribute(version.AttributeFromKind(spec.DataContentType), r.contentType); err != nil {
			return err
		}
	}
	for header, value := range r.headers {
		name, ok := strings.CutPrefix(header, r.prefix)
		if !ok {
			continue
		}
		var err error
		if attribute := version.Attribute(header); attribute != nil {
			err = writer.SetAttribute(attribute, value)
		} else {
			err = writer.SetExtension(name, value)
		}
		if err != nil {
			return err
		}
	}
	return writer.SetData(bytes.NewReader(r.body))
}

func (r *record) GetAttribute(kind spec.Kind) (spec.Attribute, any) {
	attribute := r.version().AttributeFromKind(kind)
	if kind == spec.DataContentType {
		return attribute, r.contentType
	}
	return attribute, r.headers[attribute.PrefixedName()]
}

func (r *record) GetExtension(name string) any { return r.headers[r.prefix+name] }

func (r *record) Finish(error) error { return nil }
