package main

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// No message of CRI holds itself; one that did would never be filled.
const deepest = 16

// fill sets every field to something that is not its default: lists and maps get two entries.
func fill(message protoreflect.Message, depth int) error {
	descriptor := message.Descriptor()
	if depth > deepest {
		return fmt.Errorf("%s holds itself: say here where to end", descriptor.FullName())
	}
	// Checked on both sides: with the first one, each arm needs an encoding of its own.
	if descriptor.Oneofs().Len() > 0 {
		return fmt.Errorf("%s has a oneof: encode it once for each arm", descriptor.FullName())
	}
	fields := descriptor.Fields()
	for i := range fields.Len() {
		if err := fillField(message, fields.Get(i), depth); err != nil {
			return err
		}
	}
	return nil
}

func fillField(message protoreflect.Message, field protoreflect.FieldDescriptor, depth int) error {
	switch {
	case field.IsMap():
		entries := message.Mutable(field).Map()
		for number := range 2 {
			if err := fillEntry(entries, field, number, depth); err != nil {
				return err
			}
		}
	case field.IsList():
		list := message.Mutable(field).List()
		for number := range 2 {
			value, err := element(field, list.NewElement, number, depth)
			if err != nil {
				return err
			}
			list.Append(value)
		}
	default:
		newValue := func() protoreflect.Value { return message.NewField(field) }
		value, err := element(field, newValue, 0, depth)
		if err != nil {
			return err
		}
		message.Set(field, value)
	}
	return nil
}

func fillEntry(entries protoreflect.Map, field protoreflect.FieldDescriptor, number, depth int) error {
	// The later key is the smaller one, so that order of insertion is not the sorted one.
	key, err := scalar(field.MapKey(), 1-number)
	if err != nil {
		return err
	}
	value, err := element(field.MapValue(), entries.NewValue, number, depth)
	if err == nil {
		entries.Set(key.MapKey(), value)
	}
	return err
}

func element(
	field protoreflect.FieldDescriptor, newValue func() protoreflect.Value, number, depth int,
) (protoreflect.Value, error) {
	if field.Message() == nil {
		return scalar(field, number)
	}
	value := newValue()
	return value, fill(value.Message(), depth+1)
}

// Numbers need more than half their bits and, where there is one, the sign.
func scalar(field protoreflect.FieldDescriptor, number int) (protoreflect.Value, error) {
	own := uint64(field.Number())<<8 + uint64(number)
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true), nil
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(math.MinInt32 + int32(own)), nil
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(math.MinInt64 + int64(own)), nil
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(math.MaxUint32 - uint32(own)), nil
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(math.MaxUint64 - own), nil
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(-float64(own) / 3), nil
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("%s %d ü", field.FullName(), number)), nil
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0, 0xff, byte(number)}), nil
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number()), nil
	default:
		return protoreflect.Value{}, fmt.Errorf("%s: no value for a %s", field.FullName(), field.Kind())
	}
}

// whole fails when a field is not set, here or below, or when something was not understood.
func whole(message protoreflect.Message, path string) error {
	if unknown := message.GetUnknown(); len(unknown) > 0 {
		return fmt.Errorf("%s: unknown fields: %x", path, unknown)
	}
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		below := path + "." + string(field.Name())
		if !message.Has(field) {
			return fmt.Errorf("%s is not set", below)
		}
		value := message.Get(field)
		switch {
		case field.IsMap():
			if value.Map().Len() < 2 {
				return fmt.Errorf("%s has %d entries", below, value.Map().Len())
			}
		case field.IsList():
			list := value.List()
			if list.Len() < 2 {
				return fmt.Errorf("%s has %d elements", below, list.Len())
			}
			for j := range list.Len() {
				if field.Message() != nil {
					if err := whole(list.Get(j).Message(), below); err != nil {
						return err
					}
				}
			}
		case field.Message() != nil:
			if err := whole(value.Message(), below); err != nil {
				return err
			}
		}
	}
	return nil
}
