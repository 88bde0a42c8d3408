/* config.json, which Hugging Face's transformers keeps beside the weights of a GPT-2: the shape of the model, and what else it
 * computes. With it a published model can be read without a word about its shape, and transformers loads our checkpoints.
 * Source: transformers, GPT2Config. */
#ifndef HOCKET_PARALLEL_HF_CONFIG_H
#define HOCKET_PARALLEL_HF_CONFIG_H

#include <stdbool.h>

#include "hocket/train.h"

#define HKT__HF_CONFIG_NAME "config.json"
#define HKT__HF_CONFIG_MAX 1024

/** The text for a model; "" when GPT-2 has no such model (rotary positions, gates, experts, shared key heads, no biases). */
void hkt__hf_config_write(const struct hkt_train_config *config, char out_text[HKT__HF_CONFIG_MAX]);

/** Whether a folder has one. */
bool hkt__hf_config_exists(const char *folder);
/** The shape and the norm from FOLDER/config.json; all else in `config` stays.
 *  Errors   SYSTEM: it cannot be read; INVALID: it is no JSON, or lacks a number; UNSUPPORTED names what is not as in GPT-2 */
HKT_NODISCARD enum hkt_status hkt__hf_config_read(const char *folder, struct hkt_train_config *config);

#endif
