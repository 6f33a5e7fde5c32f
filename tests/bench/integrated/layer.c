// A Vulkan layer that lets wgpu compile kernels with RADV where there is no AMD GPU.
//
// Told a family of GPUs by RADV_FORCE_FAMILY, Mesa's RADV offers a device that has the compiler, but
// no hardware: no memory and no timeline semaphores, without which wgpu opens no device. The layer
// stands in for both: memory is the host's, semaphores are never signalled, commands are dropped. Of
// each compute pipeline it appends a line of JSON to the file that ENGINE_COMPILED names: what the
// compiler counted, and the machine code. Nothing can run on such a device.
//
// Source: Vulkan 1.3, VK_KHR_pipeline_executable_properties.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../vulkan_layer.h"

static VkDevice the_device;
static PFN_vkGetPhysicalDeviceFeatures2 features_below;
static PFN_vkGetPhysicalDeviceMemoryProperties memory_below;

#define DEVICE_BELOW(name) ((PFN_##name)below.device_proc(the_device, #name))

// Memory: one heap of one type, taken from the host.

#define HEAP_NBYTES ((VkDeviceSize)2 << 30)

static VKAPI_ATTR void VKAPI_CALL get_memory(VkPhysicalDevice adapter,
                                             VkPhysicalDeviceMemoryProperties *memory) {
    memory_below(adapter, memory);
    memory->memoryHeapCount = memory->memoryTypeCount = 1;
    memory->memoryHeaps[0] = (VkMemoryHeap){HEAP_NBYTES, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
    memory->memoryTypes[0].heapIndex = 0;
    memory->memoryTypes[0].propertyFlags =
        VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
        VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
}

static VKAPI_ATTR void VKAPI_CALL get_buffer_needs(VkDevice device, VkBuffer buffer,
                                                   VkMemoryRequirements *needs) {
    DEVICE_BELOW(vkGetBufferMemoryRequirements)(device, buffer, needs);
    needs->memoryTypeBits = 1;
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice device, const VkMemoryAllocateInfo *info,
                                               const VkAllocationCallbacks *allocator,
                                               VkDeviceMemory *made) {
    (void)device, (void)allocator;
    void *memory = calloc(1, (size_t)info->allocationSize);
    *made = (VkDeviceMemory)(uintptr_t)memory;
    return memory ? VK_SUCCESS : VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

static VKAPI_ATTR void VKAPI_CALL release(VkDevice device, VkDeviceMemory memory,
                                          const VkAllocationCallbacks *allocator) {
    (void)device, (void)allocator;
    free((void *)(uintptr_t)memory);
}

static VKAPI_ATTR VkResult VKAPI_CALL map(VkDevice device, VkDeviceMemory memory,
                                          VkDeviceSize offset, VkDeviceSize nbytes,
                                          VkMemoryMapFlags flags, void **found) {
    (void)device, (void)nbytes, (void)flags;
    *found = (char *)(uintptr_t)memory + offset;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL bind_buffer(VkDevice device, VkBuffer buffer,
                                                  VkDeviceMemory memory, VkDeviceSize offset) {
    (void)device, (void)buffer, (void)memory, (void)offset;
    return VK_SUCCESS;
}

// Buffers have no memory below, so nothing may be recorded or bound there.

static VKAPI_ATTR void VKAPI_CALL update_sets(VkDevice device, uint32_t writes,
                                              const VkWriteDescriptorSet *write, uint32_t copies,
                                              const VkCopyDescriptorSet *copy) {
    (void)device, (void)writes, (void)write, (void)copies, (void)copy;
}

static VKAPI_ATTR VkResult VKAPI_CALL begin(VkCommandBuffer commands,
                                            const VkCommandBufferBeginInfo *info) {
    (void)commands, (void)info;
    return VK_SUCCESS;
}

// Stands for every command: all return nothing, and whoever calls takes its arguments away.
static VKAPI_ATTR void VKAPI_CALL command(void) {}

// Timeline semaphores: claimed when asked for, never asked of the driver, always at 0.

static VKAPI_ATTR void VKAPI_CALL get_features(VkPhysicalDevice adapter,
                                               VkPhysicalDeviceFeatures2 *features) {
    features_below(adapter, features);
    for (VkBaseOutStructure *next = features->pNext; next; next = next->pNext)
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES)
            ((VkPhysicalDeviceTimelineSemaphoreFeatures *)next)->timelineSemaphore = VK_TRUE;
}

static void take_back(const VkDeviceCreateInfo *info) {
    for (VkBaseOutStructure *next = (VkBaseOutStructure *)info->pNext; next; next = next->pNext)
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES)
            ((VkPhysicalDeviceTimelineSemaphoreFeatures *)next)->timelineSemaphore = VK_FALSE;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_semaphore(VkDevice device,
                                                       const VkSemaphoreCreateInfo *info,
                                                       const VkAllocationCallbacks *allocator,
                                                       VkSemaphore *made) {
    VkSemaphoreCreateInfo plain = *info;
    plain.pNext = NULL;
    return DEVICE_BELOW(vkCreateSemaphore)(device, &plain, allocator, made);
}

static VKAPI_ATTR VkResult VKAPI_CALL get_counter(VkDevice device, VkSemaphore semaphore,
                                                  uint64_t *value) {
    (void)device, (void)semaphore;
    *value = 0;
    return VK_SUCCESS;
}

// Statistics.

static void write_string(FILE *file, const char *text) {
    fputc('"', file);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') fprintf(file, "\\%c", c);
        else if (c < 0x20 || c > 0x7e) fprintf(file, "\\u%04x", c);
        else fputc(c, file);
    }
    fputc('"', file);
}

static void write_statistics(FILE *file, const VkPipelineExecutableInfoKHR *executable) {
    PFN_vkGetPipelineExecutableStatisticsKHR get =
        DEVICE_BELOW(vkGetPipelineExecutableStatisticsKHR);
    VkPipelineExecutableStatisticKHR all[64];
    uint32_t count = sizeof all / sizeof all[0];
    for (uint32_t i = 0; i < count; i++)
        all[i] = (VkPipelineExecutableStatisticKHR){
            .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
    if (get(the_device, executable, &count, all) < 0) count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (all[i].format != VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR) continue;
        write_string(file, all[i].name);
        fprintf(file, ": %llu, ", (unsigned long long)all[i].value.u64);
    }
}

// The last representation is the one closest to the hardware.
static void write_machine_code(FILE *file, const VkPipelineExecutableInfoKHR *executable) {
    PFN_vkGetPipelineExecutableInternalRepresentationsKHR get =
        DEVICE_BELOW(vkGetPipelineExecutableInternalRepresentationsKHR);
    VkPipelineExecutableInternalRepresentationKHR all[8];
    uint32_t count = sizeof all / sizeof all[0];
    for (uint32_t i = 0; i < count; i++)
        all[i] = (VkPipelineExecutableInternalRepresentationKHR){
            .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR};
    char *code = NULL;
    if (get(the_device, executable, &count, all) >= 0 && count) {
        all[count - 1].pData = code = calloc(1, all[count - 1].dataSize + 1);
        if (!code || get(the_device, executable, &count, all) < 0) count = 0;
    }
    fputs("\"machine code\": ", file);
    write_string(file, code && count ? code : "");
    free(code);
}

static void report(VkPipeline pipeline) {
    const char *path = getenv("ENGINE_COMPILED");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    VkPipelineExecutableInfoKHR executable = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, .pipeline = pipeline};
    fputc('{', file);
    write_statistics(file, &executable);
    write_machine_code(file, &executable);
    fputs("}\n", file);
    fclose(file);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache cache,
                                                       uint32_t count,
                                                       const VkComputePipelineCreateInfo *infos,
                                                       const VkAllocationCallbacks *allocator,
                                                       VkPipeline *made) {
    PFN_vkCreateComputePipelines create = DEVICE_BELOW(vkCreateComputePipelines);
    for (uint32_t i = 0; i < count; i++) {
        VkComputePipelineCreateInfo asked = infos[i];
        asked.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                       VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
        VkResult result = create(device, cache, 1, &asked, allocator, &made[i]);
        if (result != VK_SUCCESS) return result;
        report(made[i]);
    }
    return VK_SUCCESS;
}

// Instance and device.

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkInstance *made) {
    VkResult result = create_instance_below(info, allocator, made);
    if (result != VK_SUCCESS) return result;
    features_below = INSTANCE_BELOW(vkGetPhysicalDeviceFeatures2);
    memory_below = INSTANCE_BELOW(vkGetPhysicalDeviceMemoryProperties);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice adapter,
                                                    const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkDevice *made) {
    if (enter_device(info) != VK_SUCCESS) return VK_ERROR_INITIALIZATION_FAILED;
    take_back(info);
    const char **names = malloc((info->enabledExtensionCount + 1) * sizeof *names);
    if (!names) return VK_ERROR_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++)
        names[i] = info->ppEnabledExtensionNames[i];
    names[info->enabledExtensionCount] = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR executables = {
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        (void *)info->pNext, VK_TRUE};
    VkDeviceCreateInfo asked = *info;
    asked.enabledExtensionCount++;
    asked.ppEnabledExtensionNames = names;
    asked.pNext = &executables;
    VkResult result = INSTANCE_BELOW(vkCreateDevice)(adapter, &asked, allocator, made);
    free(names);
    if (result == VK_SUCCESS) the_device = *made;
    return result;
}

static PFN_vkVoidFunction ours(const char *name) {
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } table[] = {
        {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)instance_proc},
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_proc},
        {"vkCreateInstance", (PFN_vkVoidFunction)create_instance},
        {"vkCreateDevice", (PFN_vkVoidFunction)create_device},
        {"vkGetPhysicalDeviceFeatures2", (PFN_vkVoidFunction)get_features},
        {"vkGetPhysicalDeviceFeatures2KHR", (PFN_vkVoidFunction)get_features},
        {"vkGetPhysicalDeviceMemoryProperties", (PFN_vkVoidFunction)get_memory},
        {"vkGetBufferMemoryRequirements", (PFN_vkVoidFunction)get_buffer_needs},
        {"vkAllocateMemory", (PFN_vkVoidFunction)allocate},
        {"vkFreeMemory", (PFN_vkVoidFunction)release},
        {"vkMapMemory", (PFN_vkVoidFunction)map},
        {"vkBindBufferMemory", (PFN_vkVoidFunction)bind_buffer},
        {"vkUpdateDescriptorSets", (PFN_vkVoidFunction)update_sets},
        {"vkBeginCommandBuffer", (PFN_vkVoidFunction)begin},
        {"vkCreateSemaphore", (PFN_vkVoidFunction)create_semaphore},
        {"vkGetSemaphoreCounterValue", (PFN_vkVoidFunction)get_counter},
        {"vkGetSemaphoreCounterValueKHR", (PFN_vkVoidFunction)get_counter},
        {"vkCreateComputePipelines", (PFN_vkVoidFunction)create_pipelines},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(name, table[i].name) == 0) return table[i].function;
    return strncmp(name, "vkCmd", 5) == 0 ? (PFN_vkVoidFunction)command : NULL;
}
