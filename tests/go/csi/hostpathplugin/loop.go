package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// attachLoop returns the loop device of a file, which it may have already.
func attachLoop(path string) (string, error) {
	device, err := findLoop(path)
	if err != nil || device != "" {
		return device, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", status.Errorf(codes.Internal, "open the volume: %v", err)
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", status.Errorf(codes.Internal, "no loop devices here: %v", err)
	}
	defer control.Close()
	// Somebody else may take the free one first.
	for range 16 {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", status.Errorf(codes.ResourceExhausted, "no loop device is free: %v", err)
		}
		device := fmt.Sprintf("/dev/loop%d", number)
		if err := makeNode(device, number); err != nil {
			return "", err
		}
		loop, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return "", status.Errorf(codes.Internal, "open %s: %v", device, err)
		}
		err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(file.Fd()))
		loop.Close()
		if err == nil {
			return device, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", status.Errorf(codes.Internal, "attach %s: %v", device, err)
		}
	}
	return "", status.Error(codes.ResourceExhausted, "every free loop device was taken by others")
}

// makeNode makes the device's node where nobody else does: in a /dev without devtmpfs.
func makeNode(device string, number int) error {
	err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(number))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return status.Errorf(codes.Internal, "make %s: %v", device, err)
	}
	return nil
}

// findLoop looks for the device by the file itself, since its path is another in each mount namespace.
func findLoop(path string) (string, error) {
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return "", status.Errorf(codes.Internal, "the volume: %v", err)
	}
	devices, err := filepath.Glob("/sys/block/loop*")
	if err != nil {
		return "", status.Errorf(codes.Internal, "list loop devices: %v", err)
	}
	for _, one := range devices {
		device := "/dev/" + filepath.Base(one)
		loop, err := os.Open(device)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
		loop.Close()
		if err == nil && info.Device == file.Dev && info.Inode == file.Ino {
			return device, nil
		}
	}
	return "", nil
}

func detachLoop(path string) error {
	return onLoop(path, unix.LOOP_CLR_FD)
}

// growLoop has the device look at its file's size again.
func growLoop(path string) error {
	return onLoop(path, unix.LOOP_SET_CAPACITY)
}

func onLoop(path string, request uint) error {
	device, err := findLoop(path)
	if err != nil || device == "" {
		return err
	}
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return status.Errorf(codes.Internal, "open %s: %v", device, err)
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), request, 0); err != nil {
		return status.Errorf(codes.Internal, "ioctl %#x of %s: %v", request, device, err)
	}
	return nil
}
