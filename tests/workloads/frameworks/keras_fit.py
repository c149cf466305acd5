"""A small convolutional network, trained by Keras on PyTorch. Keras has optimizers of its own."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy

import framework_truth as truth


class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        truth.iteration()


def main():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.1),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, jit_compile=False)
    images = numpy.zeros((64, 16, 16, 3), numpy.float32)
    labels = numpy.zeros(64, numpy.int64)
    model.fit(images, labels, batch_size=8, epochs=1, verbose=0, callbacks=[Steps()])
    truth.point("trained")


if __name__ == "__main__":
    truth.run(main, packages=["keras"])
